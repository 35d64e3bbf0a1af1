#!/usr/bin/env bash
# PasoDoble on Qwen3-4B, eight GPUs of 80 GB; VARIANT=offline for the other schedule. Knobs: launch.sh.
set -euo pipefail
VARIANT=${VARIANT:-online} SCALE=${SCALE:-qwen3_4b} NGPUS=${NGPUS:-8} exec bash "$(dirname "${BASH_SOURCE[0]}")/launch.sh" "$@"
