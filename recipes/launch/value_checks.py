"""Refuse sizes, shares, switches and names that no run can have, before anything computes with them."""

from collections.abc import Mapping
from typing import Annotated, Any

from annotated_types import Len
from omegaconf import OmegaConf

from recipes.common.settings import Count, CountOrZero, NonNegative, PositiveShare, check_value
from recipes.errors import ConfigError

Name = Annotated[str, Len(1)]

KINDS: Mapping[str, Any] = {
    "trainer.nnodes": Count,
    "trainer.n_gpus_per_node": Count,
    "trainer.project_name": Name,
    "trainer.experiment_name": Name,
    "data.train_batch_size": Count,
    "data.max_prompt_length": Count,
    "data.max_response_length": Count,
}
# Of each policy: a PasoDoble run has two.
POLICY_KINDS: Mapping[str, Any] = {
    "model.path": Name | None,
    "model.lora_rank": CountOrZero | None,
    "model.lora_alpha": NonNegative | None,
    "actor.ppo_mini_batch_size": Count,
    "actor.ppo_epochs": Count,
    "actor.ppo_micro_batch_size_per_gpu": Count | None,
    "actor.ppo_max_token_len_per_gpu": Count | None,
    "actor.kl_loss_coef": NonNegative | None,
    "actor.fsdp_config.param_offload": bool | None,
    "actor.fsdp_config.optimizer_offload": bool | None,
    "rollout.n": Count,
    "rollout.temperature": NonNegative,
    "rollout.gpu_memory_utilization": PositiveShare,
    "rollout.tensor_model_parallel_size": Count,
    "rollout.data_parallel_size": Count,
    "rollout.pipeline_model_parallel_size": Count,
    "rollout.max_model_len": Count | None,
    "rollout.max_num_seqs": Count | None,
    "rollout.max_num_batched_tokens": Count | None,
    "rollout.log_prob_micro_batch_size_per_gpu": Count | None,
    "rollout.log_prob_max_token_len_per_gpu": Count | None,
    "rollout.val_kwargs.n": Count,
}
POLICIES = ("actor_rollout_ref", "proposer.actor_rollout_ref")


def check_values(config: Any) -> None:
    """Look at every key above that the config has.

    Raises:
        ConfigError: with the first key whose value is of another kind, what it must be, and what was found.
    """
    check_size_of_gpu(config)
    kinds = dict(KINDS)
    for policy in POLICIES:
        kinds |= {f"{policy}.{key}": kind for key, kind in POLICY_KINDS.items()}
    for key, kind in kinds.items():
        node, _, leaf = key.rpartition(".")
        parent = OmegaConf.select(config, node)
        if parent is not None and leaf in parent:
            value = parent[leaf]
            check_value(kind, OmegaConf.to_container(value) if OmegaConf.is_config(value) else value, key)


def check_size_of_gpu(config: Any) -> None:
    """Refuse a size of the one GPU for which `config/one_gpu` has no settings.

    Raises:
        ConfigError: naming the sizes there are.
    """
    one_gpu = config.get("one_gpu")
    if one_gpu is not None and one_gpu.size not in one_gpu.sizes:
        sizes = sorted(int(name.removeprefix("gb")) for name in one_gpu.sizes)
        raise ConfigError(
            f"one_gpu.gb (or GPU_GB) must be one of {', '.join(map(str, sizes))}, found {one_gpu.gb}: take the largest "
            "that the GPU has"
        )
