#!/usr/bin/env bash
# SFT on the teacher's correct trajectories with verl's trainer. DATASET=logiqa2 (default) or reclor sets the published
# hyper-parameters.
set -euo pipefail

DATASET=${DATASET:-logiqa2}                             # logiqa2 | reclor
ROOT=${ROOT:-outputs/step_ppo/${DATASET}}
BASE_MODEL=${BASE_MODEL:-meta-llama/Llama-2-7b-chat-hf}
SFT_FILES=${SFT_FILES:-${ROOT}/sft.parquet}
OUTPUT=${OUTPUT:-${ROOT}/sft}
case ${DATASET} in
  logiqa2) LR=${LR:-1e-5} EPOCHS=${EPOCHS:-6} ;;
  reclor) LR=${LR:-2e-6} EPOCHS=${EPOCHS:-3} ;;
  *) echo "DATASET=${DATASET}: expected logiqa2 or reclor" >&2; exit 2 ;;
esac
BATCH=${BATCH:-24}
MICRO_BATCH=${MICRO_BATCH:-2}
NGPUS=${NGPUS:-4}
OFFLOAD=${OFFLOAD:-false}
LOGGER=${LOGGER:-console}
PROJECT=${PROJECT:-verl-duets}
EXPERIMENT=${EXPERIMENT:-step_ppo_sft_${DATASET}}

exec torchrun --standalone --nproc_per_node="${NGPUS}" -m recipes.launch.supervised \
  model.path="'${BASE_MODEL}'" \
  data.train_files="${SFT_FILES}" \
  data.custom_cls.path=pkg://recipes.step_ppo.sft_dataset \
  data.custom_cls.name=ContinuationDataset \
  data.train_batch_size="${BATCH}" \
  data.micro_batch_size_per_gpu="${MICRO_BATCH}" \
  data.max_length=2048 \
  data.truncation=right \
  optim.lr="${LR}" \
  optim.lr_warmup_steps_ratio=0.01 \
  optim.lr_scheduler_type=cosine \
  optim.weight_decay=0.01 \
  'optim.betas=[0.9,0.95]' \
  'optim.override_optimizer_config={eps:1e-6}' \
  engine.param_offload="${OFFLOAD}" \
  engine.optimizer_offload="${OFFLOAD}" \
  trainer.total_epochs="${EPOCHS}" \
  trainer.save_freq=after_each_epoch \
  trainer.max_ckpt_to_keep=2 \
  trainer.default_local_dir="'${OUTPUT}'" \
  trainer.logger="[${LOGGER}]" \
  trainer.project_name="'${PROJECT}'" \
  trainer.experiment_name="'${EXPERIMENT}'" \
  'checkpoint.save_contents=[model,optimizer,extra,hf_model]' \
  "$@"
