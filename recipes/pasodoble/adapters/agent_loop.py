"""One turn, started inside an open ``<think>`` block.

Source: PasoDoble, ``get_prompt``: both roles' prompts end in ``<think>`` and a newline, whatever the template does.
"""

from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

from recipes.pasodoble.prompts import open_thinking


class OpenThinkingAgentLoop(SingleTurnAgentLoop):
    """verl's single-turn loop, whose prompt is completed by ``<think>`` where the template does not end in it."""

    async def ct_build_initial_tokens(self, messages, *args, **kwargs) -> list[int]:
        """Token ids of the prompt; too long ones lose their beginning, never the open block."""
        prompt_ids = await super().ct_build_initial_tokens(messages, *args, **kwargs)
        tail = self.tokenizer.decode(prompt_ids[-8:])
        suffix = self.tokenizer.encode(open_thinking(tail), add_special_tokens=False)
        return (prompt_ids + suffix)[-self.rollout_config.prompt_length :]
