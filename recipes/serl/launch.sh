#!/usr/bin/env bash
# The body of every run_*.sh of this folder; they set SCALE, MODEL_PATH and OFFLOAD.
# Knobs are the variables below; WANDB_API_KEY and WANDB_ENTITY are read from the environment by wandb itself.
set -euo pipefail

SCALE=${SCALE:?a file of config/scale}
MODEL_PATH=${MODEL_PATH:?a model folder or hub id}
SERL_DIR=${SERL_DIR:-outputs/data/serl}                  # seeds.jsonl, seeds.parquet, train.parquet, val.parquet
VARIANT=${VARIANT:-self_instruct}                       # self_instruct | majority | ttrl | ground_truth
ESTIMATOR=${ESTIMATOR:-$([[ $VARIANT == ttrl ]] && echo grpo || echo reinforce_pp)}    # reinforce_pp | rloo | grpo
CONVENTION=${CONVENTION:-default}                       # default | reference
RESOURCES=${RESOURCES:-colocated}                       # colocated | split: rollouts on GPUs of their own
INSTRUCTIONS=${INSTRUCTIONS:-}                          # trained prompts of an iteration; empty: the variant's
ITERATIONS=${ITERATIONS:-}                              # empty: one, or the epochs of ttrl
ROLLOUT=${ROLLOUT:-vllm}                                # vllm | sglang
TP=${TP:-1}
GPU_MEMORY_UTILIZATION=${GPU_MEMORY_UTILIZATION:-0.5}   # more with RESOURCES=split
OFFLOAD=${OFFLOAD:-false}                                 # true: parameters and optimizer rest in host memory
NGPUS=${NGPUS:-8}                                        # that train, per node; RESOURCES=split takes others beside them
NNODES=${NNODES:-1}
MINI_BATCH=${MINI_BATCH:-$(((NGPUS * NNODES + 15) / 16))}      # prompts of an update: its 16 rows each give every GPU one
ROLLOUT_NGPUS=${ROLLOUT_NGPUS:-}                        # RESOURCES=split: for rollouts, per node; empty: NGPUS
ROLLOUT_NNODES=${ROLLOUT_NNODES:-}                      # empty: NNODES
LORA_RANK=${LORA_RANK:-}                                # adapters of this rank in place of all weights; empty: the scale's
LORA_ALPHA=${LORA_ALPHA:-${LORA_RANK}}
LOGGER=${LOGGER:-console}                               # comma-separated: console,wandb,tensorboard,file
PROJECT=${PROJECT:-verl-duets}
EXPERIMENT=${EXPERIMENT:-serl_${SCALE}_${VARIANT}_${ESTIMATOR}${LORA_RANK:+_lora${LORA_RANK}}}

export SERL_DIR

source "$(dirname "${BASH_SOURCE[0]}")/../launch/launcher.sh"   # arguments=(...) from the knobs that all recipes have

exec python3 -m recipes.serl.main scale="${SCALE}" variant="${VARIANT}" estimator="${ESTIMATOR}" convention="${CONVENTION}" \
  resources="${RESOURCES}" \
  ${ROLLOUT_NGPUS:+actor_rollout_ref.rollout.n_gpus_per_node="${ROLLOUT_NGPUS}"} \
  ${ROLLOUT_NNODES:+actor_rollout_ref.rollout.nnodes="${ROLLOUT_NNODES}"} \
  ${INSTRUCTIONS:+serl.instructions_num_per_iteration="${INSTRUCTIONS}"} \
  ${ITERATIONS:+serl.iterations="${ITERATIONS}"} \
  actor_rollout_ref.model.path="'${MODEL_PATH}'" \
  actor_rollout_ref.rollout.name="${ROLLOUT}" \
  actor_rollout_ref.actor.ppo_mini_batch_size="${MINI_BATCH}" \
  "${arguments[@]}" "$@"
