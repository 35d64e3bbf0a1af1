#!/usr/bin/env bash
# SeRL with Qwen3-4B (thinking off), 8 GPUs.
# Prepare the data first: python -m recipes.serl.seeds.prepare --model Qwen/Qwen3-4B
# Knobs: launch.sh.
set -euo pipefail
SCALE=qwen3_4b MODEL_PATH=${MODEL_PATH:-Qwen/Qwen3-4B} OFFLOAD=${OFFLOAD:-false} exec bash "$(dirname "${BASH_SOURCE[0]}")/launch.sh" "$@"
