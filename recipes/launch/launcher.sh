# Sourced by the launchers run_*.sh. `launch RECIPE ARGUMENT...` starts a recipe with these arguments and a setting for each
# of the variables below that is set. Every default stands in the recipe's yaml, so that `bash run_X.sh` and
# `python -m recipes.NAME.main` with the same choices are the same run. WANDB_API_KEY and WANDB_ENTITY are read by wandb, from
# scratch/wandb_secrets.env, too; with a key the run logs there unless LOGGER says otherwise.
set -euo pipefail
[[ ! -f scratch/wandb_secrets.env ]] || source scratch/wandb_secrets.env
[[ -z "${WANDB_API_KEY:-}" ]] || { export WANDB_API_KEY; LOGGER="${LOGGER:-console,wandb}"; }

# A path in quotes of Hydra's, which a space needs; a list as it is.
quoted() { if [[ "$1" == \[* ]]; then printf '%s' "$1"; else printf "'%s'" "$1"; fi; }

launch() {
  local recipe=$1
  shift
  local rollout=actor_rollout_ref.rollout actor=actor_rollout_ref.actor model=actor_rollout_ref.model
  # A run with adapters must not find the checkpoints of one without.
  local folder='outputs/checkpoints/${trainer.project_name}/${trainer.experiment_name}'
  exec python3 -m "recipes.${recipe}.main" "$@" \
    ${MODEL_PATH:+"${model}.path='${MODEL_PATH}'"} \
    ${TRAIN_FILES:+data.train_files="$(quoted "${TRAIN_FILES}")"} \
    ${VAL_FILES:+data.val_files="$(quoted "${VAL_FILES}")"} \
    ${NGPUS:+trainer.n_gpus_per_node="${NGPUS}"} \
    ${NNODES:+trainer.nnodes="${NNODES}"} \
    ${THINKING:+"++data.apply_chat_template_kwargs.enable_thinking=${THINKING}"} \
    ${ROLLOUT:+"${rollout}.name=${ROLLOUT}"} \
    ${TP:+"${rollout}.tensor_model_parallel_size=${TP}"} \
    ${GPU_MEMORY_UTILIZATION:+"${rollout}.gpu_memory_utilization=${GPU_MEMORY_UTILIZATION}"} \
    ${MAX_TOKENS_PER_GPU:+"${actor}.use_dynamic_bsz=true" "${actor}.ppo_max_token_len_per_gpu=${MAX_TOKENS_PER_GPU}"} \
    ${OFFLOAD:+"${actor}.fsdp_config.param_offload=${OFFLOAD}" "${actor}.fsdp_config.optimizer_offload=${OFFLOAD}"} \
    ${LORA_RANK:+"${model}.lora_rank=${LORA_RANK}" "${model}.lora_alpha=${LORA_ALPHA:-${LORA_RANK}}" \
      "${rollout}.load_format=auto" "trainer.default_local_dir='${folder}_lora${LORA_RANK}'"} \
    ${LOGGER:+trainer.logger="[${LOGGER}]"} \
    ${PROJECT:+trainer.project_name="'${PROJECT}'"} \
    ${EXPERIMENT:+trainer.experiment_name="'${EXPERIMENT}'"} \
    ${ARGUMENTS[@]+"${ARGUMENTS[@]}"}
}
