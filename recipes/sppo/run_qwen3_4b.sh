#!/usr/bin/env bash
# SPPO with Qwen3-4B (thinking off) on MATH, 8 GPUs, packed micro-batches. SCALE=qwen3_4b_lora_1gpu: adapters on one GPU.
# Prepare the data first: python examples/data_preparation/math_dataset.py
# PRESET is verl, paper, iterative or grpo (verl's plain GRPO, the baseline); other variables: ../launch/launcher.sh.
source "$(dirname "${BASH_SOURCE[0]}")/../launch/launcher.sh"
launch sppo scale="${SCALE:-qwen3_4b}" ${PRESET:+preset="${PRESET}"} "$@"
