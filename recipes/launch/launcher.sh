# Sourced by the recipes' launchers, after their own knobs: `arguments`, what the knobs that all of them have come to.
arguments=(
  actor_rollout_ref.actor.fsdp_config.param_offload="${OFFLOAD}"
  actor_rollout_ref.actor.fsdp_config.optimizer_offload="${OFFLOAD}"
  actor_rollout_ref.rollout.tensor_model_parallel_size="${TP}"
  actor_rollout_ref.rollout.gpu_memory_utilization="${GPU_MEMORY_UTILIZATION}"
  trainer.n_gpus_per_node="${gpus:-${NGPUS}}"
  trainer.nnodes="${NNODES}"
  trainer.logger="[${LOGGER}]"
  trainer.project_name="'${PROJECT}'"
  trainer.experiment_name="'${EXPERIMENT}'"
)
if [ -n "${LORA_RANK}" ]; then
  arguments+=(
    actor_rollout_ref.model.lora_rank="${LORA_RANK}"
    actor_rollout_ref.model.lora_alpha="${LORA_ALPHA}"
    actor_rollout_ref.rollout.load_format=auto          # the engine reads the base model; only adapters are sent
  )
fi
