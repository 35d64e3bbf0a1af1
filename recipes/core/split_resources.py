"""Check the settings of rollouts on devices of their own (``actor_rollout_ref.hybrid_engine=false``)."""

from omegaconf import DictConfig

from recipes.errors import ConfigError


def is_split(config: DictConfig) -> bool:
    """Whether rollouts have devices of their own, beside those that train."""
    return not config.actor_rollout_ref.hybrid_engine


def rollout_devices(config: DictConfig) -> int:
    """Devices that rollouts take beside ``trainer.nnodes`` x ``trainer.n_gpus_per_node``."""
    rollout = config.actor_rollout_ref.rollout
    return rollout.nnodes * rollout.n_gpus_per_node if is_split(config) else 0


def choose_backend(config: DictConfig) -> None:
    """Name the checkpoint engine of a split run that leaves it null: gloo on a CPU, elsewhere nccl."""
    engine = config.actor_rollout_ref.rollout.checkpoint_engine
    if is_split(config) and engine.backend is None:
        engine.backend = "gloo" if config.trainer.device == "cpu" else "nccl"


def check_resources(config: DictConfig) -> None:
    """Refuse devices that rollouts cannot have.

    Raises:
        ConfigError: one sentence that says what was found and what to set.
    """
    rollout = config.actor_rollout_ref.rollout
    if not is_split(config):
        if rollout.nnodes:
            raise ConfigError(
                f"actor_rollout_ref.rollout.nnodes={rollout.nnodes} gives rollouts devices of their own, which they "
                "take only with actor_rollout_ref.hybrid_engine=false (resources=split)"
            )
        return
    _check_devices(rollout)
    if rollout.checkpoint_engine.backend in (None, "naive"):
        raise ConfigError(
            f"actor_rollout_ref.rollout.checkpoint_engine.backend={rollout.checkpoint_engine.backend} cannot send "
            "weights to other devices: set nccl or another backend of verl's, or gloo on a CPU"
        )
    if rollout.checkpoint_engine.backend == "delta_sharded":
        key = "actor_rollout_ref.rollout.checkpoint_engine.backend"
        raise ConfigError(
            f"{key}=delta_sharded sends what changed alone, so that a lost weight sync would go unseen "
            "(recipes/core/sync_guard.py compares whole syncs): set nccl",
            key,
        )
    model = config.actor_rollout_ref.model
    if (model.lora_rank > 0 or model.get("lora_adapter_path")) and not model.get("lora", {}).get("merge"):
        raise ConfigError(
            "verl's checkpoint engines do not carry LoRA adapters: set actor_rollout_ref.model.lora.merge=true to "
            "send merged weights, or share devices with actor_rollout_ref.hybrid_engine=true (resources=colocated)"
        )
    reward_model = config.reward.reward_model
    if reward_model.enable and not reward_model.enable_resource_pool:
        raise ConfigError(
            "rollouts on devices of their own do not make room for a reward model: set "
            "reward.reward_model.enable_resource_pool=true"
        )


def _check_devices(rollout: DictConfig) -> None:
    if min(rollout.nnodes, rollout.n_gpus_per_node) < 1:
        raise ConfigError(
            f"actor_rollout_ref.rollout.nnodes={rollout.nnodes} x n_gpus_per_node={rollout.n_gpus_per_node} leaves "
            "rollouts without devices of their own: set both to at least 1"
        )
    replica = rollout.tensor_model_parallel_size * rollout.data_parallel_size * rollout.pipeline_model_parallel_size
    per_node, devices = rollout.n_gpus_per_node, rollout.nnodes * rollout.n_gpus_per_node
    if devices % replica or (per_node % replica and replica % per_node):
        raise ConfigError(
            f"an engine of {replica} devices (tensor x data x pipeline parallel size) does not divide "
            f"actor_rollout_ref.rollout.nnodes={rollout.nnodes} x n_gpus_per_node={per_node}: every device of the "
            "rollouts must belong to an engine that fills whole nodes or fits into one"
        )
