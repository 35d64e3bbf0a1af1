#!/usr/bin/env bash
# Step-PPO on LogiQA-v2 with Qwen3-4B. Make the models first: BASE_MODEL=Qwen/Qwen3-4B-Base run_pipeline_logiqa2.sh.
# Takes the knobs of run_step_ppo_logiqa2.sh.
set -euo pipefail

export SCALE=qwen3_4b
export OFFLOAD=${OFFLOAD:-false}                        # 16 GiB of 80 GB are free beside the engine
export ROOT=${ROOT:-outputs/step_ppo/logiqa2_qwen3_4b}
exec bash "$(dirname "${BASH_SOURCE[0]}")/run_step_ppo_logiqa2.sh" "$@"
