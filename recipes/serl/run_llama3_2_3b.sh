#!/usr/bin/env bash
# SeRL with LLaMA-3.2-3B-Instruct, the original's first model, 8 GPUs of 48 GB.
# Prepare the data first: python -m recipes.serl.seeds.prepare --model meta-llama/Llama-3.2-3B-Instruct
# Knobs: launch.sh.
set -euo pipefail
SCALE=llama3_2_3b MODEL_PATH=${MODEL_PATH:-meta-llama/Llama-3.2-3B-Instruct} OFFLOAD=${OFFLOAD:-true} exec bash "$(dirname "${BASH_SOURCE[0]}")/launch.sh" "$@"
