#!/usr/bin/env bash
# SeRL with adapters on one GPU: Qwen3-4B (thinking off).
# Prepare the data first: python -m recipes.serl.seeds.prepare --model Qwen/Qwen3-4B
# Knobs: those below and those of ../launch/train_one_gpu.sh (GPU_GB, LORA_RANK, LORA_ALPHA, LOGGER, PROJECT, EXPERIMENT).
# Sizes follow GPU_GB; python -m recipes.serl.main --dry-run scale=qwen3_4b_lora_1gpu says what they take.
set -euo pipefail

MODEL_PATH=${MODEL_PATH:-Qwen/Qwen3-4B}
export SERL_DIR=${SERL_DIR:-outputs/data/serl}
VARIANT=${VARIANT:-self_instruct}                       # self_instruct | majority | ground_truth

exec bash "$(dirname "${BASH_SOURCE[0]}")/../launch/train_one_gpu.sh" serl "serl_qwen3_4b_lora_1gpu_${VARIANT}" variant="${VARIANT}" \
  actor_rollout_ref.model.path="'${MODEL_PATH}'" \
  "$@"
