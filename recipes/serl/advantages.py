"""What the trainer does to advantages in the queue: padding rows of their own length, and RLOO with a KL penalty.

RLOO's baseline comes from the scores alone, the penalty joins afterwards.
"""

import torch

from recipes.core import data_plane
from recipes.core.data_plane import KVBatchMeta, padded, unpadded
from recipes.serl.estimators import rloo_advantage

# What verl computes for each response token after sampling.
TOKEN_FIELDS = (
    "old_log_probs",
    "log_probs",
    "entropy",
    "self_certainty",
    "ref_log_prob",
    "token_level_rewards",
    "advantages",
    "returns",
)


def reset_padding(batch: KVBatchMeta) -> None:
    """Set the padding rows of `batch` to zeros of their own length.

    verl makes them from a copy of a real row and resets what sampling wrote; log-probs and advantages would keep the
    length of the row they came from.
    """
    keys = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if data_plane.is_padding(tag)]
    if not keys:
        return
    found = data_plane.read(batch, keys=keys)
    zeros = [torch.zeros(len(response)) for response in found["responses"]]
    data_plane.write(batch, {name: zeros for name in TOKEN_FIELDS if name in found}, keys=keys)


def replace_by_rloo(batch: KVBatchMeta) -> KVBatchMeta:
    """Replace the advantages and returns of `batch` in the TransferQueue.

    verl's own pass has written `token_level_rewards`, the scores less the penalty; their difference is the penalty.
    """
    rows = data_plane.read(batch, "response_mask", "rm_scores", "token_level_rewards")
    lengths = [len(row) for row in rows["response_mask"]]
    mask, scores, rewards = (padded(rows[name]) for name in ("response_mask", "rm_scores", "token_level_rewards"))
    real = torch.tensor([not data_plane.is_padding(tag) for tag in batch.tags])
    prompts = [data_plane.uid_of(key) for key in data_plane.real_keys(batch)]
    penalty = scores - rewards
    advantages, returns = torch.zeros_like(penalty), torch.zeros_like(penalty)
    advantages[real], returns[real] = rloo_advantage(
        scores.sum(dim=1)[real], prompts, penalty[real], mask[real], kl_coef=1.0
    )
    values = {"advantages": unpadded(advantages, lengths), "returns": unpadded(returns, lengths)}
    return data_plane.write(batch, values)
