#!/usr/bin/env bash
# PasoDoble online, models below 3B, four GPUs of 80 GB. Knobs: launch.sh.
set -euo pipefail
VARIANT=${VARIANT:-online} SCALE=${SCALE:-qwen3_1_7b} NGPUS=${NGPUS:-4} exec bash "$(dirname "${BASH_SOURCE[0]}")/launch.sh" "$@"
