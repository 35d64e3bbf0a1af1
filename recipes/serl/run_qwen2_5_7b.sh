#!/usr/bin/env bash
# SeRL with Qwen2.5-7B-Instruct, the original's second model, 8 GPUs.
# Prepare the data first: python -m recipes.serl.seeds.prepare --model Qwen/Qwen2.5-7B-Instruct
# VARIANT is self_instruct, majority, ttrl or ground_truth, ESTIMATOR reinforce_pp, rloo or grpo; others: ../launch/launcher.sh.
source "$(dirname "${BASH_SOURCE[0]}")/../launch/launcher.sh"
launch serl scale=qwen2_5_7b ${VARIANT:+variant="${VARIANT}"} ${ESTIMATOR:+estimator="${ESTIMATOR}"} "$@"
