#!/usr/bin/env bash
# The body of the launchers run_*.sh, which choose PRESET. Further arguments are Hydra's key=value. WANDB_API_KEY and
# WANDB_ENTITY are read from the environment by wandb itself.
set -euo pipefail
: "${PRESET:?start one of the run_*.sh}"

MODEL_PATH=${MODEL_PATH:-Qwen/Qwen3-4B-Instruct-2507}
DATA_DIR=${DATA_DIR:-outputs/data/deepscaler}
TP=${TP:-1}
GPU_MEMORY_UTILIZATION=${GPU_MEMORY_UTILIZATION:-0.65}
MAX_TOKENS_PER_GPU=${MAX_TOKENS_PER_GPU:-10000}         # tokens in a packed micro-batch
OFFLOAD=${OFFLOAD:-true}                                # true: parameters and optimizer rest in host memory
NGPUS=${NGPUS:-2}
NNODES=${NNODES:-1}
LORA_RANK=${LORA_RANK:-}                                # adapters of this rank in place of all weights; empty: the scale's
LORA_ALPHA=${LORA_ALPHA:-${LORA_RANK}}
LOGGER=${LOGGER:-console}                               # comma-separated: console,wandb,tensorboard,file
PROJECT=${PROJECT:-verl-duets}
# PRESET=tandem
JUNIOR_PATH=${JUNIOR_PATH:-${MODEL_PATH}}
STRATEGY=${STRATEGY:-word}                              # word | bernoulli | chunk | alternating | sentence
PROB_SENIOR=${PROB_SENIOR:-0.5}
MAX_GAP_TOKENS=${MAX_GAP_TOKENS:-32}
MODE=${MODE:-auto}                                      # auto | lazy | lock_step | speculative
VALIDATION=${VALIDATION:-solo}                          # solo | joint | both
# PRESET=grpo, grpo_n16, kl
ROLLOUT=${ROLLOUT:-vllm}                                # vllm | sglang
KL_COEF=${KL_COEF:-0.001}                               # kl: of the low-variance estimator, in the loss

if [ "${PRESET}" = tandem ]; then
  engine=actor_rollout_ref.rollout.engine_kwargs.vllm.tandem_config
  method=(
    algorithm.tandem.validation="${VALIDATION}"
    "${engine}.junior_model='${JUNIOR_PATH}'"
    "${engine}.selection_strategy=${STRATEGY}"
    "${engine}.prob_senior=${PROB_SENIOR}"
    "${engine}.max_gap_tokens=${MAX_GAP_TOKENS}"
    "${engine}.mode=${MODE}"
  )
  EXPERIMENT=${EXPERIMENT:-tandem_qwen3_4b_${STRATEGY}${LORA_RANK:+_lora${LORA_RANK}}}
else
  method=(actor_rollout_ref.rollout.name="${ROLLOUT}")
  EXPERIMENT=${EXPERIMENT:-tandem_qwen3_4b_${PRESET}${LORA_RANK:+_lora${LORA_RANK}}}
fi
if [ "${PRESET}" = kl ]; then
  method+=(actor_rollout_ref.actor.kl_loss_coef="${KL_COEF}")
fi

source "$(dirname "${BASH_SOURCE[0]}")/../launch/launcher.sh"   # arguments=(...) from the knobs that all recipes have

exec python3 -m recipes.tandem.main scale=qwen3_4b preset="${PRESET}" \
  data.train_files="'${DATA_DIR}/train.parquet'" \
  data.val_files="['${DATA_DIR}/amc.parquet','${DATA_DIR}/aime.parquet','${DATA_DIR}/minerva.parquet']" \
  actor_rollout_ref.model.path="'${MODEL_PATH}'" \
  actor_rollout_ref.actor.ppo_max_token_len_per_gpu="${MAX_TOKENS_PER_GPU}" \
  "${method[@]}" "${arguments[@]}" "$@"
