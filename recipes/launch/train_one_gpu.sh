#!/usr/bin/env bash
# The body of every run_qwen3_4b_lora_1gpu.sh: bash train_one_gpu.sh RECIPE EXPERIMENT ARGUMENT..., with adapters on one GPU.
set -euo pipefail

RECIPE=$1
EXPERIMENT=${EXPERIMENT:-$2}
shift 2
export GPU_GB=${GPU_GB:-24}                             # 24 | 48 | 80: the GPU's memory
LORA_RANK=${LORA_RANK:-32}
LORA_ALPHA=${LORA_ALPHA:-${LORA_RANK}}
LOGGER=${LOGGER:-console}                               # comma-separated: console,wandb,tensorboard,file
PROJECT=${PROJECT:-verl-duets}

exec python3 -m "recipes.${RECIPE}.main" scale=qwen3_4b_lora_1gpu \
  actor_rollout_ref.model.lora_rank="${LORA_RANK}" \
  actor_rollout_ref.model.lora_alpha="${LORA_ALPHA}" \
  trainer.logger="[${LOGGER}]" \
  trainer.project_name="'${PROJECT}'" \
  trainer.experiment_name="'${EXPERIMENT}'" \
  "$@"
