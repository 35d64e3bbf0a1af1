#!/usr/bin/env bash
# Step-PPO on LogiQA-v2 from the process-DPO model, with the PRM of round 1: the published row (Llama-2-7B).
# Make the models first: run_pipeline_logiqa2.sh. PRESET=outcome is the matched outcome-only baseline.
# Knobs are the variables below; WANDB_API_KEY and WANDB_ENTITY are read from the environment by wandb itself.
set -euo pipefail

SCALE=${SCALE:-logiqa2_llama2_7b}
ROOT=${ROOT:-outputs/step_ppo/logiqa2}
MODEL_PATH=${MODEL_PATH:-${ROOT}/process_dpo}
PRM_PATH=${PRM_PATH:-${ROOT}/round1/prm}
CRITIC_PATH=${CRITIC_PATH:-${PRM_PATH}/backbone}
TRAIN_FILES=${TRAIN_FILES:-${ROOT}/train.parquet}
VAL_FILES=${VAL_FILES:-${ROOT}/dev.parquet}
PRESET=${PRESET:-prm}                                   # prm | outcome
MODE=${MODE:-sum}                                       # preset prm: sum | mean | difference | min | product | softmin
TP=${TP:-1}
GPU_MEMORY_UTILIZATION=${GPU_MEMORY_UTILIZATION:-0.5}
MAX_TOKENS_PER_GPU=${MAX_TOKENS_PER_GPU:-16384}         # tokens in a packed micro-batch
FSDP_SIZE=${FSDP_SIZE:--1}                              # ranks that share one copy of the parameters; -1 for all
RESHARD=${RESHARD:-true}                                # drop gathered parameters after the forward pass
OFFLOAD=${OFFLOAD:-true}                                # actor and critic rest in host memory: on 80 GB they would leave
                                                        # less than 2 GiB beside an engine that takes half
NGPUS=${NGPUS:-4}
PRM_NGPUS=${PRM_NGPUS:-4}
NNODES=${NNODES:-1}
LORA_RANK=${LORA_RANK:-}                                # adapters of this rank in place of all weights; empty: the scale's
LORA_ALPHA=${LORA_ALPHA:-${LORA_RANK}}
LOGGER=${LOGGER:-console}                               # comma-separated: console,wandb,tensorboard,file
PROJECT=${PROJECT:-verl-duets}
EXPERIMENT=${EXPERIMENT:-step_ppo_${SCALE}_${PRESET}${LORA_RANK:+_lora${LORA_RANK}}}

REWARD=()
if [[ ${PRESET} == prm ]]; then
  REWARD=(step_ppo.reward.mode="${MODE}" reward.reward_model.model_path="'${PRM_PATH}'"
    reward.reward_model.n_gpus_per_node="${PRM_NGPUS}")
fi

source "$(dirname "${BASH_SOURCE[0]}")/../launch/launcher.sh"   # arguments=(...) from the knobs that all recipes have
if [ -n "${LORA_RANK}" ]; then
  arguments+=(critic.model.lora_rank="${LORA_RANK}" critic.model.lora_alpha="${LORA_ALPHA}")
fi

exec python3 -m recipes.step_ppo.main scale="${SCALE}" preset="${PRESET}" "${REWARD[@]}" \
  data.train_files="${TRAIN_FILES}" \
  data.val_files="${VAL_FILES}" \
  actor_rollout_ref.model.path="'${MODEL_PATH}'" \
  critic.model.path="'${CRITIC_PATH}'" \
  actor_rollout_ref.actor.ppo_max_token_len_per_gpu="${MAX_TOKENS_PER_GPU}" \
  critic.ppo_max_token_len_per_gpu="${MAX_TOKENS_PER_GPU}" \
  actor_rollout_ref.actor.fsdp_config.fsdp_size="${FSDP_SIZE}" \
  actor_rollout_ref.actor.fsdp_config.reshard_after_forward="${RESHARD}" \
  critic.fsdp.param_offload="${OFFLOAD}" \
  critic.fsdp.optimizer_offload="${OFFLOAD}" \
  "${arguments[@]}" "$@"
