#!/usr/bin/env bash
# The body of the launchers run_*.sh, which choose SCALE, PRESET and the defaults of their knobs. Further arguments are
# Hydra's key=value. WANDB_API_KEY and WANDB_ENTITY are read from the environment by wandb itself.
set -euo pipefail
: "${SCALE:?start run_qwen2_5_7b_math.sh, run_qwen3_4b.sh or run_grpo_baseline.sh}" "${PRESET:?}" "${MODEL_PATH:?}"

TRAIN_FILES=${TRAIN_FILES:-outputs/data/math/train.parquet}
VAL_FILES=${VAL_FILES:-outputs/data/math/test.parquet}
ROLLOUT=${ROLLOUT:-vllm}                                # vllm | sglang
TP=${TP:-1}
GPU_MEMORY_UTILIZATION=${GPU_MEMORY_UTILIZATION:-0.3}
MAX_TOKENS_PER_GPU=${MAX_TOKENS_PER_GPU:-0}             # above 0: packed micro-batches of at most so many tokens
OFFLOAD=${OFFLOAD:-false}                               # true: parameters and optimizer rest in host memory
NGPUS=${NGPUS:-4}
NNODES=${NNODES:-1}
LORA_RANK=${LORA_RANK:-}                                # adapters of this rank in place of all weights; empty: the scale's
LORA_ALPHA=${LORA_ALPHA:-${LORA_RANK}}
LOGGER=${LOGGER:-console}                               # comma-separated: console,wandb,tensorboard,file
PROJECT=${PROJECT:-verl-duets}
EXPERIMENT=${EXPERIMENT:-sppo_${SCALE}_${PRESET}${LORA_RANK:+_lora${LORA_RANK}}}

packing=()
if [ "${MAX_TOKENS_PER_GPU}" -gt 0 ]; then
  packing=(
    actor_rollout_ref.actor.use_dynamic_bsz=true
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu="${MAX_TOKENS_PER_GPU}"
  )
fi

source "$(dirname "${BASH_SOURCE[0]}")/../launch/launcher.sh"   # arguments=(...) from the knobs that all recipes have

exec python3 -m recipes.sppo.main scale="${SCALE}" preset="${PRESET}" \
  data.train_files="${TRAIN_FILES}" \
  data.val_files="${VAL_FILES}" \
  actor_rollout_ref.model.path="'${MODEL_PATH}'" \
  actor_rollout_ref.rollout.name="${ROLLOUT}" \
  ${packing[@]+"${packing[@]}"} "${arguments[@]}" "$@"
