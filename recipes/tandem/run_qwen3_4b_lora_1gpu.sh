#!/usr/bin/env bash
# Tandem RL with adapters on one GPU: Qwen3-4B-Instruct-2507 on DeepScaleR beside its frozen start.
# Prepare the data first: python examples/data_preparation/deepscaler.py
# Knobs: those below and those of ../launch/train_one_gpu.sh (GPU_GB, LORA_RANK, LORA_ALPHA, LOGGER, PROJECT, EXPERIMENT).
# Sizes follow GPU_GB; python -m recipes.tandem.main --dry-run scale=qwen3_4b_lora_1gpu says what they take.
set -euo pipefail

MODEL_PATH=${MODEL_PATH:-Qwen/Qwen3-4B-Instruct-2507}
PRESET=${PRESET:-tandem}                                 # tandem | grpo | grpo_n16 | kl

exec bash "$(dirname "${BASH_SOURCE[0]}")/../launch/train_one_gpu.sh" tandem "tandem_qwen3_4b_lora_1gpu_${PRESET}" preset="${PRESET}" \
  actor_rollout_ref.model.path="'${MODEL_PATH}'" \
  "$@"
