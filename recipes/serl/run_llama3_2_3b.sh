#!/usr/bin/env bash
# SeRL with LLaMA-3.2-3B-Instruct, the original's first model, 8 GPUs of 48 GB.
# Prepare the data first: python -m recipes.serl.seeds.prepare --model meta-llama/Llama-3.2-3B-Instruct
# VARIANT is self_instruct, majority, ttrl or ground_truth, ESTIMATOR reinforce_pp, rloo or grpo; others: ../launch/launcher.sh.
source "$(dirname "${BASH_SOURCE[0]}")/../launch/launcher.sh"
launch serl scale=llama3_2_3b ${VARIANT:+variant="${VARIANT}"} ${ESTIMATOR:+estimator="${ESTIMATOR}"} "$@"
