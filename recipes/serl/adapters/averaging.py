"""Move the parameters of a sharded model towards another's, shard by shard."""

import torch
from torch import nn


@torch.no_grad()
def move_towards(teacher: nn.Module, policy: nn.Module, rate: float) -> tuple[float, float]:
    """Replace each parameter of `teacher` by (1 - rate) of itself + `rate` of the policy's.

    Both models are sharded alike; each rank moves its own shards, wherever they lie. A parameter that two layers share
    moves once.

    Returns:
        Sums of squares over the shards of this rank: of the difference to the policy after the move, and of the policy.

    Raises:
        ValueError: the models have other parameters, or other shards of them.
    """
    difference = norm = 0.0
    for (name, kept), (other, trained) in zip(_sharded(teacher), _sharded(policy), strict=True):
        if name != other or kept.shape != trained.shape:
            raise ValueError(
                f"teacher and policy are not sharded alike: {name} {tuple(kept.shape)} and {other} "
                f"{tuple(trained.shape)}; give actor and reference the same strategy and wrap policy"
            )
        target = trained.to(device=kept.device, dtype=kept.dtype)
        kept.lerp_(target, rate)
        difference += float((kept - target).square().sum(dtype=torch.float64))
        norm += float(target.square().sum(dtype=torch.float64))
    return difference, norm


def _sharded(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """The local shards of all parameters; FSDP2 may still hold a root unsharded from its last forward pass."""
    for module in model.modules():
        if hasattr(module, "reshard"):
            module.reshard()
    return [
        (name, value.to_local() if hasattr(value, "to_local") else value) for name, value in model.named_parameters()
    ]
