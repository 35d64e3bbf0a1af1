#!/usr/bin/env bash
# SPPO as verl's recipe published it: Qwen2.5-7B-Instruct on MATH, 20 epochs (140 steps), 4 GPUs of 80 GB.
# Prepare the data first: python examples/data_preparation/math_dataset.py
# PRESET is verl, paper or iterative; the other knobs stand on top of train.sh.
export SCALE=qwen2_5_7b_math PRESET="${PRESET:-verl}" MODEL_PATH="${MODEL_PATH:-Qwen/Qwen2.5-7B-Instruct}"
exec bash "$(dirname "${BASH_SOURCE[0]}")/train.sh" "$@"
