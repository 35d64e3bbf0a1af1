"""verl agent loop `step_ppo`: one turn, with a reward for each token of the response."""

from typing import Any

import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

from recipes.step_ppo.tokens import encode_prompt, prompt_of


class StepRewardOutput(AgentLoopOutput):
    """An output whose `rm_scores` are the token rewards that the reward manager `step_ppo` left with it."""

    def as_dict(self) -> dict[str, Any]:
        output = super().as_dict()
        # Lists among the extra infos would reach verl's validation metrics, which take scalars and strings only.
        infos = output["extra_fields"].get("reward_extra_info") or {}
        rewards = infos.pop("token_rewards", None)
        if rewards is not None and "rm_scores" in output:
            length = output["responses"].size(0)
            if len(rewards) != length:
                raise ValueError(f"{len(rewards)} token rewards for {length} response tokens")
            output["rm_scores"] = torch.tensor(rewards, dtype=torch.float32)
        return output


class StepPPOAgentLoop(SingleTurnAgentLoop):
    """ReAct without a chat template: the prompt ends inside `Thought 1:`, and the response continues it. Lines with the
    model's own, where it has one."""

    async def ct_build_initial_tokens(self, messages, *arguments, **more) -> list[int]:
        """Token ids of the prompt, as every offline stage encodes it."""
        style = self.config.step_ppo.step_style
        if style == "lines" and self.tokenizer.chat_template:
            return await super().ct_build_initial_tokens(messages, *arguments, **more)
        ids = await self.loop.run_in_executor(None, encode_prompt, self.tokenizer, prompt_of(messages, style))
        return self._cap_text_prompt_length(ids)

    async def run(self, sampling_params: dict[str, Any], **kwargs) -> StepRewardOutput:
        output = await super().run(sampling_params, **kwargs)
        # as_dict dumps what was set, so only that may be handed on.
        return StepRewardOutput(**{name: getattr(output, name) for name in output.model_fields_set})
