"""SFT on the pipeline's own text form with verl's trainer: prompt and response as plain text, loss on the response
and EOS.

Use it through `data.custom_cls.path=pkg://recipes.step_ppo.sft_dataset` and
`data.custom_cls.name=ContinuationDataset`.
"""

import torch
from torch.utils.data import Dataset
from verl.utils.dataset.rl_dataset import RLHFDataset

from recipes.core.files import read_rows
from recipes.step_ppo.tokens import encode_prompt, encode_trajectory, prompt_of


class PromptDataset(RLHFDataset):
    """verl's own, but for the lengths of prompts where the tokenizer has no chat template: verl measures a prompt
    through it, and drops every row where there is none."""

    def maybe_filter_out_long_prompts(self, dataframe=None):
        """The rows whose prompts fit, measured as the rollouts encode them."""
        if self.tokenizer.chat_template or not self.filter_overlong_prompts:
            return super().maybe_filter_out_long_prompts(dataframe)
        tokenizer, key, limit = self.tokenizer, self.prompt_key, self.max_prompt_length
        return dataframe.filter(
            lambda row: len(encode_prompt(tokenizer, prompt_of(row[key], "react"))) <= limit, num_proc=self.num_workers
        )


class ContinuationDataset(Dataset):
    """Rows of `teach`: `prompt` (a text or messages), and `response` with the space that joins it to a text.

    Gives what verl's SFT trainer reads: `input_ids`, `position_ids`, `loss_mask` (T,), and with `pad_mode=right` an
    `attention_mask`, all padded to `max_length`.

    Args:
        parquet_files: one path or several. tokenizer: a fast tokenizer. config: verl's `data` block (`max_length`,
            `pad_mode`, `truncation`). processor: unused. max_samples: use the first so many rows; -1 for all.

    Raises:
        ValueError: from an item that is longer than `max_length` with `truncation=error`.
    """

    def __init__(self, parquet_files, tokenizer, config, processor=None, max_samples: int = -1):
        paths = [parquet_files] if isinstance(parquet_files, str) else list(parquet_files)
        rows = [row for path in paths for row in read_rows(path)]
        self.rows = rows[:max_samples] if max_samples > 0 else rows
        self.tokenizer = tokenizer
        self.max_length = config.get("max_length", 2048)
        self.pad_mode = config.get("pad_mode", "no_padding")
        self.truncation = config.get("truncation", "error")
        if self.pad_mode not in ("right", "no_padding") or self.truncation not in ("error", "right"):
            raise ValueError(f"cannot prepare rows with pad_mode={self.pad_mode} and truncation={self.truncation}")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = self.rows[index]
        prompt = row["prompt"] if isinstance(row["prompt"], str) else [dict(message) for message in row["prompt"]]
        encoded = encode_trajectory(self.tokenizer, prompt, row["response"].removeprefix(" "), [])
        ids = [*encoded.ids, self.tokenizer.eos_token_id]
        if len(ids) > self.max_length and self.truncation == "error":
            raise ValueError(f"row {index} has {len(ids)} tokens, more than data.max_length={self.max_length}")
        ids = ids[: self.max_length]
        mask = [int(position >= encoded.prompt_length) for position in range(len(ids))]
        item = {
            "input_ids": torch.tensor(ids),
            "position_ids": torch.arange(len(ids)),
            "loss_mask": torch.tensor(mask),
        }
        if self.pad_mode == "right":
            item["attention_mask"] = torch.ones(len(ids), dtype=torch.long)
            missing = self.max_length - len(ids)
            fill = {"input_ids": self.tokenizer.pad_token_id or 0}
            item = {
                name: torch.nn.functional.pad(values, (0, missing), value=fill.get(name, 0))
                for name, values in item.items()
            }
        return item
