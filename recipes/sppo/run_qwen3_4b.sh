#!/usr/bin/env bash
# SPPO with Qwen3-4B (thinking off) on MATH, 8 GPUs, packed micro-batches.
# Prepare the data first: python examples/data_preparation/math_dataset.py
# Knobs are the variables below; WANDB_API_KEY and WANDB_ENTITY are read from the environment by wandb itself.
set -euo pipefail

MODEL_PATH=${MODEL_PATH:-Qwen/Qwen3-4B}
TRAIN_FILES=${TRAIN_FILES:-outputs/data/math/train.parquet}
VAL_FILES=${VAL_FILES:-outputs/data/math/test.parquet}
PRESET=${PRESET:-verl}                                  # verl | paper
ROLLOUT=${ROLLOUT:-vllm}                                # vllm | sglang
TP=${TP:-1}
GPU_MEMORY_UTILIZATION=${GPU_MEMORY_UTILIZATION:-0.6}
MAX_TOKENS_PER_GPU=${MAX_TOKENS_PER_GPU:-16384}         # tokens in a packed micro-batch
OFFLOAD=${OFFLOAD:-false}                               # true: parameters and optimizer rest in host memory
NGPUS=${NGPUS:-8}
NNODES=${NNODES:-1}
LOGGER=${LOGGER:-console}                               # comma-separated: console,wandb,tensorboard,file
PROJECT=${PROJECT:-verl-duets}
EXPERIMENT=${EXPERIMENT:-sppo_qwen3_4b_${PRESET}}

exec python3 -m recipes.sppo.main scale=qwen3_4b preset="${PRESET}" \
  data.train_files="${TRAIN_FILES}" \
  data.val_files="${VAL_FILES}" \
  actor_rollout_ref.model.path="${MODEL_PATH}" \
  actor_rollout_ref.actor.ppo_max_token_len_per_gpu="${MAX_TOKENS_PER_GPU}" \
  actor_rollout_ref.actor.fsdp_config.param_offload="${OFFLOAD}" \
  actor_rollout_ref.actor.fsdp_config.optimizer_offload="${OFFLOAD}" \
  actor_rollout_ref.rollout.name="${ROLLOUT}" \
  actor_rollout_ref.rollout.tensor_model_parallel_size="${TP}" \
  actor_rollout_ref.rollout.gpu_memory_utilization="${GPU_MEMORY_UTILIZATION}" \
  trainer.n_gpus_per_node="${NGPUS}" \
  trainer.nnodes="${NNODES}" \
  trainer.logger="[${LOGGER}]" \
  trainer.project_name="${PROJECT}" \
  trainer.experiment_name="${EXPERIMENT}" \
  "$@"
