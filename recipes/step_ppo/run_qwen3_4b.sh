#!/usr/bin/env bash
# Step-PPO on LogiQA-v2 with Qwen3-4B. Make the models first: BASE_MODEL=Qwen/Qwen3-4B-Base run_pipeline_logiqa2.sh.
# SCALE=qwen3_4b_lora_1gpu: adapters for actor and critic on one GPU. Variables: those of run_step_ppo_logiqa2.sh.
export SCALE="${SCALE:-qwen3_4b}"
exec bash "$(dirname "${BASH_SOURCE[0]}")/run_step_ppo_logiqa2.sh" "$@"
