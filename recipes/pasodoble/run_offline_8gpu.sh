#!/usr/bin/env bash
# PasoDoble offline, 3B and 4B models, eight GPUs of 80 GB. Knobs: launch.sh.
set -euo pipefail
VARIANT=${VARIANT:-offline} SCALE=${SCALE:-qwen3_4b} NGPUS=${NGPUS:-8} exec bash "$(dirname "${BASH_SOURCE[0]}")/launch.sh" "$@"
