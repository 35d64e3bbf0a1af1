#!/usr/bin/env bash
# PasoDoble with adapters on one GPU: Qwen3-4B, both roles after their supervised start.
# Prepare the models first: run_sft.sh.
# Knobs: those below and those of ../launch/train_one_gpu.sh (GPU_GB, LORA_RANK, LORA_ALPHA, LOGGER, PROJECT, EXPERIMENT).
# Sizes follow GPU_GB; python -m recipes.pasodoble.main --dry-run scale=qwen3_4b_lora_1gpu says what they take.
set -euo pipefail

VARIANT=${VARIANT:-online}                              # online | offline
export SOLVER_MODEL_NAME=${SOLVER_MODEL_NAME:-outputs/pasodoble_sft/solver_qwen3_4b}
export PROPOSER_MODEL_NAME=${PROPOSER_MODEL_NAME:-outputs/pasodoble_sft/proposer_qwen3_4b}
export VAL_FILES=${VAL_FILES:-outputs/data/math/test.parquet}

exec bash "$(dirname "${BASH_SOURCE[0]}")/../launch/train_one_gpu.sh" pasodoble "pasodoble_${VARIANT}_qwen3_4b_lora_1gpu" variant="${VARIANT}" \
  "$@"
