"""Answer a round of instructions through verl's rollout, vote on each group, and write the votes as rewards."""

import uuid
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transfer_queue as tq
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.rl_dataset import collate_fn

from recipes.serl.collection import Group, Round
from recipes.serl.pool import Instruction
from recipes.serl.settings import VoteSettings
from reward_fns.errors import SkipError
from reward_fns.majority import majority_vote
from reward_fns.result import FailureBudget, Score, Skip

PARTITION = "train"
VOTE_BUDGET = FailureBudget(share=0.1, min_count=2)


@dataclass(frozen=True)
class RowKey:
    """The parts of a TransferQueue key `{uid}_{session}_{index}`."""

    uid: str
    session: int

    @classmethod
    def parse(cls, key: str) -> "RowKey":
        uid, session, _ = key.rsplit("_", 2)
        return cls(uid, int(session))


def instruction_row(instruction: Instruction, answer_template: str, index: int) -> dict[str, Any]:
    """The dataset row of a prompt without gold answer, as verl's dataset would have made it."""
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
    """Rows as the batch that verl's agent loop takes, and the uid of each."""
    batch = collate_fn(rows)
    uids = [str(uuid.uuid4()) for _ in rows]
    batch["uid"] = np.array(uids, dtype=object)
    batch = tu.get_tensordict(batch)
    tu.assign_non_tensor_data(batch, "global_steps", global_steps)
    return batch, uids


def keep_groups(batch: KVBatchMeta, uids: set[str]) -> KVBatchMeta:
    """The rows of the groups `uids`; rows of the others leave the TransferQueue."""
    kept = [key for key in batch.keys if RowKey.parse(key).uid in uids]
    dropped = [key for key in batch.keys if RowKey.parse(key).uid not in uids]
    if not dropped:
        return batch
    tq.kv_clear(keys=dropped, partition_id=batch.partition_id)
    return batch.select_keys(kept)


def complete_groups(batch: KVBatchMeta, n: int) -> set[str]:
    """The uids of groups that have all `n` responses."""
    sizes = Counter(RowKey.parse(key).uid for key in batch.keys)
    return {uid for uid, size in sizes.items() if size == n}


def judge(
    batch: KVBatchMeta, instructions: dict[str, Instruction], tokenizer: Any, settings: VoteSettings, *, voted: bool
) -> Round:
    """Vote on each group of `batch`, in the order of `instructions` (by uid), and write the votes as `rm_scores`.

    Responses are voted on in the order of their sessions, for the rules that ask which was sampled first. A group
    without a winner is not usable: without a label there is no reward. With `voted` off the rewards that are there
    stay, and agreement is their mean. Where the reward function knew a gold answer, its verdict on the winner becomes
    `label_correct`.

    Raises `BudgetSpent` when the workers that compare answers fail on more than a tenth of the groups.
    """
    fields = ["prompts", "responses", "rm_scores"]
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
    prompts, responses = data["prompts"].unbind(), data["responses"].unbind()
    scores = [float(row.sum()) for row in data["rm_scores"].unbind()]
    members: dict[str, list[int]] = defaultdict(list)
    for row, key in enumerate(batch.keys):
        members[RowKey.parse(key).uid].append(row)

    judged, rewards, verdicts = Round([]), [0.0] * len(batch), []
    for uid, instruction in instructions.items():
        if uid not in members:
            continue
        rows = sorted(members[uid], key=lambda row: RowKey.parse(batch.keys[row]).session)
        if not voted:
            judged.groups.append(Group(instruction, sum(scores[row] for row in rows) / len(rows), handle=uid))
            continue
        texts = [_text(tokenizer, prompts[row], responses[row], settings.question_in_text) for row in rows]
        try:
            vote = majority_vote(texts, convention=settings.convention, ties=settings.ties)
        except SkipError as error:
            verdicts.append(Skip(str(error)))
            judged.unusable.append((instruction, "vote_failed"))
            continue
        verdicts.append(Score(vote.agreement))
        if not vote.decided:
            judged.unusable.append((instruction, f"vote_{vote.reason}"))
            continue
        for row, reward in zip(rows, vote.rewards, strict=True):
            rewards[row] = reward
        label = scores[rows[vote.winner]] > 0 if instruction.origin == "dataset" else None
        judged.groups.append(Group(instruction, sum(vote.rewards) / len(rows), vote.entropy, label, handle=uid))
    VOTE_BUDGET.require(verdicts)
    if voted:
        _write_rewards(batch, responses, rewards)
    return judged


def keys_of(batches: Sequence[KVBatchMeta], uids: Sequence[str]) -> tuple[list[str], list[dict]]:
    """Keys and tags of the real rows of `uids` in `batches`, padding rows left out."""
    wanted = set(uids)
    keys, tags = [], []
    for batch in batches:
        for key, tag in zip(batch.keys, batch.tags, strict=True):
            if not tag.get("is_padding", False) and RowKey.parse(key).uid in wanted:
                keys.append(key)
                tags.append(tag)
    return keys, tags


def _text(tokenizer: Any, prompt: torch.Tensor, response: torch.Tensor, with_question: bool) -> str:
    ids = torch.cat([prompt, response]) if with_question else response
    return tokenizer.decode(ids, skip_special_tokens=True)


def _write_rewards(batch: KVBatchMeta, responses: Sequence[torch.Tensor], rewards: Sequence[float]) -> None:
    """Put each reward on the last token of its response, where verl's own rewards stand."""
    rows = []
    for response, reward in zip(responses, rewards, strict=True):
        row = torch.zeros(len(response), dtype=torch.float32)
        row[-1] = reward
        rows.append(row)
    fields = TensorDict({"rm_scores": torch.nested.as_nested_tensor(rows, layout=torch.jagged)}, batch_size=len(rows))
    tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)
