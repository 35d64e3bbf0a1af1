#!/usr/bin/env bash
# Supervised start of one role on verl's SFT trainer: ROLE=proposer or ROLE=solver, from the same base model. NAME is the
# launchers' SCALE, MODEL_PATH its base model.
# The original fine-tunes with LLaMA-Factory (dataset_info.json lies beside the data); its hyper-parameters are not known.
set -euo pipefail

ROLE=${ROLE:?set ROLE=proposer or ROLE=solver}
MODEL_PATH=${MODEL_PATH:-Qwen/Qwen3-1.7B}
NAME=${NAME:-qwen3_1_7b}
DATA_DIR=${DATA_DIR:-outputs/pasodoble_sft}
OUTPUT_DIR=${OUTPUT_DIR:-outputs/pasodoble_sft/checkpoints/${ROLE}_${NAME}}
NGPUS=${NGPUS:-4}
BATCH_SIZE=${BATCH_SIZE:-32}
EPOCHS=${EPOCHS:-3}
LR=${LR:-1e-5}
MAX_LENGTH=${MAX_LENGTH:-8192}
LOGGER=${LOGGER:-console}                                # comma-separated: console,wandb,tensorboard,file
PROJECT=${PROJECT:-verl-duets}

case "${ROLE}" in
  proposer) FILE="${DATA_DIR}/pasodoble_sft.parquet" ;;
  solver) FILE="${DATA_DIR}/solver_pasodoble_sft.parquet" ;;
  *) echo "ROLE must be proposer or solver, got ${ROLE}" >&2; exit 2 ;;
esac

# every turn is rendered by itself: the template of Qwen3 treats the last turn of a whole chat differently
torchrun --standalone --nnodes=1 --nproc_per_node="${NGPUS}" -m recipes.launch.supervised \
  data.train_files="'${FILE}'" \
  data.train_batch_size="${BATCH_SIZE}" \
  data.max_length="${MAX_LENGTH}" \
  data.max_token_len_per_gpu="${MAX_LENGTH}" \
  data.use_dynamic_bsz=true \
  data.truncation=right \
  data.pad_mode=no_padding \
  data.ignore_input_ids_mismatch=true \
  model.path="'${MODEL_PATH}'" \
  model.enable_gradient_checkpointing=true \
  optim.lr="${LR}" \
  optim.lr_scheduler_type=cosine \
  optim.lr_warmup_steps_ratio=0.03 \
  checkpoint.save_contents="[model,optimizer,extra,hf_model]" \
  trainer.total_epochs="${EPOCHS}" \
  trainer.save_freq=after_each_epoch \
  trainer.default_local_dir="'${OUTPUT_DIR}'" \
  trainer.project_name="'${PROJECT}'" \
  trainer.experiment_name="'pasodoble_sft_${ROLE}_${NAME}'" \
  trainer.logger="[${LOGGER}]" \
  "$@"

latest=$(cat "${OUTPUT_DIR}/latest_checkpointed_iteration.txt")
# where the launchers look for it
ln -sfn "$(realpath "${OUTPUT_DIR}/global_step_${latest}/huggingface")" "${DATA_DIR}/${ROLE}_${NAME}"
echo "the ${ROLE} is ${DATA_DIR}/${ROLE}_${NAME}"
