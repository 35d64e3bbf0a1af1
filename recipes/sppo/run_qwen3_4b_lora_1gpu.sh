#!/usr/bin/env bash
# SPPO with adapters on one GPU: Qwen3-4B (thinking off) on MATH.
# Prepare the data first: python examples/data_preparation/math_dataset.py
# Knobs: those below and those of ../launch/train_one_gpu.sh (GPU_GB, LORA_RANK, LORA_ALPHA, LOGGER, PROJECT, EXPERIMENT).
# Sizes follow GPU_GB; python -m recipes.sppo.main --dry-run scale=qwen3_4b_lora_1gpu says what they take.
set -euo pipefail

MODEL_PATH=${MODEL_PATH:-Qwen/Qwen3-4B}
PRESET=${PRESET:-verl}                                   # verl | paper | iterative | grpo

exec bash "$(dirname "${BASH_SOURCE[0]}")/../launch/train_one_gpu.sh" sppo "sppo_qwen3_4b_lora_1gpu_${PRESET}" preset="${PRESET}" \
  actor_rollout_ref.model.path="'${MODEL_PATH}'" \
  "$@"
