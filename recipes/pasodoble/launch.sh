#!/usr/bin/env bash
# The body of every run_*.sh of this folder; they set VARIANT, SCALE, NGPUS and the models' names.
# Knobs are the variables below; WANDB_API_KEY and WANDB_ENTITY are read from the environment by wandb itself.
set -euo pipefail

VARIANT=${VARIANT:?online or offline}
SCALE=${SCALE:?a file of config/scale}
export SOLVER_MODEL_NAME=${SOLVER_MODEL_NAME:-outputs/pasodoble_sft/solver_${SCALE}}
export PROPOSER_MODEL_NAME=${PROPOSER_MODEL_NAME:-outputs/pasodoble_sft/proposer_${SCALE}}
export VAL_FILES=${VAL_FILES:-outputs/data/math/test.parquet}
KNOWLEDGE=${KNOWLEDGE:-YouAreSpecialToMe/filtered_MegaMath}
LAYOUT=${LAYOUT:-colocate}                              # colocate | separate: half of the GPUs for each role
ROUNDS_PER_STEP=${ROUNDS_PER_STEP:-1}                   # 1 is the paper; more fill the GPUs
TP=${TP:-1}
GPU_MEMORY_UTILIZATION=${GPU_MEMORY_UTILIZATION:-0.6}
MAX_TOKENS_PER_GPU=${MAX_TOKENS_PER_GPU:-16384}         # of a packed micro-batch
OFFLOAD=${OFFLOAD:-true}                                # parameters and optimizer rest in host memory
NGPUS=${NGPUS:-8}
NNODES=${NNODES:-1}
LORA_RANK=${LORA_RANK:-}                                # adapters of this rank in place of all weights; empty: the scale's
LORA_ALPHA=${LORA_ALPHA:-${LORA_RANK}}
LOGGER=${LOGGER:-console}                               # comma-separated: console,wandb,tensorboard,file
PROJECT=${PROJECT:-verl-duets}
EXPERIMENT=${EXPERIMENT:-pasodoble_${VARIANT}_${SCALE}${LORA_RANK:+_lora${LORA_RANK}}}

gpus=${NGPUS}
if [ "${LAYOUT}" = separate ]; then
  gpus=$((NGPUS / 2))
fi

source "$(dirname "${BASH_SOURCE[0]}")/../launch/launcher.sh"   # arguments=(...) from the knobs that all recipes have

exec python3 -m recipes.pasodoble.main variant="${VARIANT}" scale="${SCALE}" \
  data.val_files="${VAL_FILES}" \
  pasodoble.knowledge.path="'${KNOWLEDGE}'" \
  pasodoble.layout="${LAYOUT}" \
  pasodoble.rounds_per_step="${ROUNDS_PER_STEP}" \
  pasodoble.proposer_gpus_per_node="${gpus}" \
  pasodoble.proposer_nodes="${NNODES}" \
  actor_rollout_ref.actor.ppo_max_token_len_per_gpu="${MAX_TOKENS_PER_GPU}" \
  "${arguments[@]}" "$@"
