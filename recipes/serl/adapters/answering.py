"""Turn the prompts of a round into a batch for verl's agent loop."""

import uuid
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.rl_dataset import collate_fn

from recipes.serl.pool import Instruction


def instruction_row(instruction: Instruction, answer_template: str, index: int) -> dict[str, Any]:
    """Build the dataset row of a prompt without gold answer, as verl's dataset would."""
    return {
        "raw_prompt": [{"role": "user", "content": answer_template.replace("{question}", instruction.text)}],
        "dummy_tensor": torch.tensor([0], dtype=torch.uint8),
        "data_source": "serl/self_instruct",
        "reward_model": {"style": "vote", "ground_truth": ""},
        "extra_info": {"index": index},
        "index": index,
        "tools_kwargs": {},
        "interaction_kwargs": {},
    }


def prompt_batch(rows: list[dict[str, Any]], global_steps: int) -> tuple[TensorDict, list[str]]:
    """Collate rows into the batch that verl's agent loop takes; return it and the uid of each row."""
    batch = collate_fn(rows)
    uids = [str(uuid.uuid4()) for _ in rows]
    batch["uid"] = np.array(uids, dtype=object)
    batch = tu.get_tensordict(batch)
    tu.assign_non_tensor_data(batch, "global_steps", global_steps)
    return batch, uids
