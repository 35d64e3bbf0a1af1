"""The agent loop `serl_raw_prompt`: one turn on the bare text of the prompt, without chat template."""

from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop


class RawPromptAgentLoop(SingleTurnAgentLoop):
    """Prompts as in the SeRL code's training and validation: no template, no special tokens."""

    async def ct_build_initial_tokens(self, messages, *_, **__) -> list[int]:
        """Tokenise the messages' contents, joined."""
        text = "".join(message["content"] for message in messages)
        ids = await self.loop.run_in_executor(None, lambda: self.tokenizer(text, add_special_tokens=False)["input_ids"])
        return self._cap_text_prompt_length(ids)
