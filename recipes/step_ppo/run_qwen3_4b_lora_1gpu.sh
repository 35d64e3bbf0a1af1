#!/usr/bin/env bash
# Step-PPO with adapters for actor and critic on one GPU: LogiQA-v2 with Qwen3-4B; PRESET=prm takes a second GPU.
# Make the models first: BASE_MODEL=Qwen/Qwen3-4B-Base run_pipeline_logiqa2.sh.
# Knobs: those below and those of ../launch/train_one_gpu.sh (GPU_GB, LORA_RANK, LORA_ALPHA, LOGGER, PROJECT, EXPERIMENT).
# Sizes follow GPU_GB; python -m recipes.step_ppo.main --dry-run scale=qwen3_4b_lora_1gpu says what they take.
set -euo pipefail

ROOT=${ROOT:-outputs/step_ppo/logiqa2_qwen3_4b}
export DATA_DIR=${DATA_DIR:-${ROOT}}
MODEL_PATH=${MODEL_PATH:-${ROOT}/process_dpo}
PRM_PATH=${PRM_PATH:-${ROOT}/round1/prm}
PRESET=${PRESET:-prm}                                   # prm | outcome

prm=()
if [[ ${PRESET} == prm ]]; then
  prm=(reward.reward_model.model_path="'${PRM_PATH}'")
fi

exec bash "$(dirname "${BASH_SOURCE[0]}")/../launch/train_one_gpu.sh" step_ppo "step_ppo_qwen3_4b_lora_1gpu_${PRESET}" preset="${PRESET}" \
  actor_rollout_ref.model.path="'${MODEL_PATH}'" \
  critic.model.path="'${PRM_PATH}/backbone'" \
  ${prm[@]+"${prm[@]}"} \
  critic.model.lora_rank="${LORA_RANK:-32}" \
  critic.model.lora_alpha="${LORA_ALPHA:-${LORA_RANK:-32}}" \
  "$@"
