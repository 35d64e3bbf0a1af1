#!/usr/bin/env bash
# SeRL with Qwen3-4B (thinking off), 8 GPUs. SCALE=qwen3_4b_lora_1gpu: adapters on one GPU.
# Prepare the data first: python -m recipes.serl.seeds.prepare --model Qwen/Qwen3-4B
# VARIANT is self_instruct, majority, ttrl or ground_truth, ESTIMATOR reinforce_pp, rloo or grpo; others: ../launch/launcher.sh.
source "$(dirname "${BASH_SOURCE[0]}")/../launch/launcher.sh"
launch serl scale="${SCALE:-qwen3_4b}" ${VARIANT:+variant="${VARIANT}"} ${ESTIMATOR:+estimator="${ESTIMATOR}"} "$@"
