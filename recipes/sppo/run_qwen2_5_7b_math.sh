#!/usr/bin/env bash
# SPPO as verl's recipe published it: Qwen2.5-7B-Instruct on MATH, 20 epochs (140 steps), 4 GPUs of 80 GB.
# Prepare the data first: python examples/data_preparation/math_dataset.py
# PRESET is verl, paper, iterative or grpo (verl's plain GRPO, the baseline); other variables: ../launch/launcher.sh.
source "$(dirname "${BASH_SOURCE[0]}")/../launch/launcher.sh"
launch sppo scale=qwen2_5_7b_math ${PRESET:+preset="${PRESET}"} "$@"
