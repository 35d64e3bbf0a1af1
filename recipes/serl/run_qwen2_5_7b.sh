#!/usr/bin/env bash
# SeRL with Qwen2.5-7B-Instruct, the original's second model, 8 GPUs.
# Prepare the data first: python -m recipes.serl.seeds.prepare --model Qwen/Qwen2.5-7B-Instruct
# Knobs: launch.sh.
set -euo pipefail
SCALE=qwen2_5_7b MODEL_PATH=${MODEL_PATH:-Qwen/Qwen2.5-7B-Instruct} OFFLOAD=${OFFLOAD:-true} exec bash "$(dirname "${BASH_SOURCE[0]}")/launch.sh" "$@"
