#!/usr/bin/env bash
# verl's GRPO beside tandem: same model, data, optimisation, responses and selection of the checkpoint; no junior.
# Prepare the data first: python examples/data_preparation/deepscaler.py
# Knobs are the variables below; WANDB_API_KEY and WANDB_ENTITY are read from the environment by wandb itself.
set -euo pipefail

MODEL_PATH=${MODEL_PATH:-Qwen/Qwen3-4B-Instruct-2507}
DATA_DIR=${DATA_DIR:-outputs/data/deepscaler}
ROLLOUT=${ROLLOUT:-vllm}                                # vllm | sglang
TP=${TP:-1}
GPU_MEMORY_UTILIZATION=${GPU_MEMORY_UTILIZATION:-0.65}
MAX_TOKENS_PER_GPU=${MAX_TOKENS_PER_GPU:-10000}         # tokens in a packed micro-batch
OFFLOAD=${OFFLOAD:-true}                                # true: parameters and optimizer rest in host memory
NGPUS=${NGPUS:-2}
NNODES=${NNODES:-1}
LOGGER=${LOGGER:-console}                               # comma-separated: console,wandb,tensorboard,file
PROJECT=${PROJECT:-verl-duets}
EXPERIMENT=${EXPERIMENT:-tandem_qwen3_4b_grpo}

exec python3 -m recipes.tandem.main scale=qwen3_4b preset=grpo \
  data.train_files="${DATA_DIR}/train.parquet" \
  data.val_files="[${DATA_DIR}/amc.parquet,${DATA_DIR}/aime.parquet,${DATA_DIR}/minerva.parquet]" \
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
