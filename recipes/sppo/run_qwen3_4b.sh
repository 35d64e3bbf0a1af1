#!/usr/bin/env bash
# SPPO with Qwen3-4B (thinking off) on MATH, 8 GPUs, packed micro-batches.
# Prepare the data first: python examples/data_preparation/math_dataset.py
# PRESET is verl, paper or iterative; the other knobs stand on top of train.sh.
export SCALE=qwen3_4b PRESET="${PRESET:-verl}" MODEL_PATH="${MODEL_PATH:-Qwen/Qwen3-4B}" NGPUS="${NGPUS:-8}"
export GPU_MEMORY_UTILIZATION="${GPU_MEMORY_UTILIZATION:-0.6}" MAX_TOKENS_PER_GPU="${MAX_TOKENS_PER_GPU:-16384}"
exec bash "$(dirname "${BASH_SOURCE[0]}")/train.sh" "$@"
