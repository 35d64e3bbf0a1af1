#!/usr/bin/env bash
# PasoDoble offline, models below 3B, four GPUs of 80 GB. SCALE is a file of config/scale, SOLVER_MODEL_NAME and PROPOSER_MODEL_NAME are
# the models after their supervised start (run_sft.sh); other variables: ../launch/launcher.sh.
source "$(dirname "${BASH_SOURCE[0]}")/../launch/launcher.sh"
launch pasodoble variant=offline scale="${SCALE:-qwen3_1_7b}" "$@"
