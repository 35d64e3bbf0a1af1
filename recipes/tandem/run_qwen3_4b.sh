#!/usr/bin/env bash
# Tandem RL as published: Qwen3-4B-Instruct-2507 on DeepScaleR, the junior its own frozen start, two GPUs of 80 GB.
# SCALE=qwen3_4b_lora_1gpu: adapters on one GPU. Prepare the data first: python examples/data_preparation/deepscaler.py
# PRESET is tandem, portable, or a baseline: grpo, grpo_n16, kl; other variables: ../launch/launcher.sh.
source "$(dirname "${BASH_SOURCE[0]}")/../launch/launcher.sh"
launch tandem scale="${SCALE:-qwen3_4b}" ${PRESET:+preset="${PRESET}"} "$@"
