"""RLOO with a KL penalty in the reward: the baseline comes from the scores alone, the penalty joins afterwards."""

import torch
import transfer_queue as tq
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.workers.utils.padding import response_to_nested

from recipes.serl.adapters.answering import is_padding, uid_of
from recipes.serl.estimators import rloo_advantage


def replace_by_rloo(batch: KVBatchMeta) -> KVBatchMeta:
    """Replace the advantages and returns of `batch` in the TransferQueue.

    verl's own pass has written `token_level_rewards`, the scores less the penalty; their difference is the penalty.
    """
    fields = ["response_mask", "rm_scores", "token_level_rewards"]
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
    response_mask = data["response_mask"]
    data = data.to_padded_tensor()
    scores, penalty = data["rm_scores"].sum(dim=1), data["rm_scores"] - data["token_level_rewards"]
    real = torch.tensor([not is_padding(tag) for tag in batch.tags])
    prompts = [uid_of(key) for key, keep in zip(batch.keys, real.tolist(), strict=True) if keep]
    advantages, returns = torch.zeros_like(penalty), torch.zeros_like(penalty)
    advantages[real], returns[real] = rloo_advantage(
        scores[real], prompts, penalty[real], data["response_mask"][real], kl_coef=1.0
    )
    fields = {
        "advantages": response_to_nested(advantages, response_mask),
        "returns": response_to_nested(returns, response_mask),
    }
    values = TensorDict(fields, batch_size=len(batch))
    return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=values)
