#!/usr/bin/env bash
# PasoDoble online, 3B and 4B models, eight GPUs of 80 GB. SCALE is a file of config/scale, SOLVER_MODEL_NAME and PROPOSER_MODEL_NAME are
# the models after their supervised start (run_sft.sh); other variables: ../launch/launcher.sh.
source "$(dirname "${BASH_SOURCE[0]}")/../launch/launcher.sh"
launch pasodoble variant=online scale="${SCALE:-qwen3_4b}" "$@"
