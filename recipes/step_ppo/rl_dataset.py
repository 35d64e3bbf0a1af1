"""verl's dataset for prompts in plain text: a base model without a chat template keeps its rows.

verl measures a prompt through the chat template, and drops every row where there is none.
"""

from verl.utils.dataset.rl_dataset import RLHFDataset

from recipes.step_ppo.tokens import encode_prompt, prompt_of


class PromptDataset(RLHFDataset):
    """verl's own, but for the lengths of prompts where the tokenizer has no chat template."""

    def maybe_filter_out_long_prompts(self, dataframe=None):
        """The rows whose prompts fit, measured as the rollouts encode them."""
        if self.tokenizer.chat_template or not self.filter_overlong_prompts:
            return super().maybe_filter_out_long_prompts(dataframe)
        tokenizer, key, limit = self.tokenizer, self.prompt_key, self.max_prompt_length
        return dataframe.filter(
            lambda row: len(encode_prompt(tokenizer, prompt_of(row[key], "react"))) <= limit, num_proc=self.num_workers
        )
