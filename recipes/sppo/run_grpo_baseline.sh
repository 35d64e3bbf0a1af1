#!/usr/bin/env bash
# verl's plain GRPO beside SPPO: same model, data, learning rate, steps, and responses per update (128 x 8 for 1024 x 1).
# SCALE=qwen3_4b MODEL_PATH=Qwen/Qwen3-4B NGPUS=8 GPU_MEMORY_UTILIZATION=0.6 is the baseline of run_qwen3_4b.sh.
# The other knobs stand on top of train.sh.
export SCALE="${SCALE:-qwen2_5_7b_math}" PRESET=grpo MODEL_PATH="${MODEL_PATH:-Qwen/Qwen2.5-7B-Instruct}"
export EXPERIMENT="${EXPERIMENT:-grpo_${SCALE}${LORA_RANK:+_lora${LORA_RANK}}}"
exec bash "$(dirname "${BASH_SOURCE[0]}")/train.sh" "$@"
