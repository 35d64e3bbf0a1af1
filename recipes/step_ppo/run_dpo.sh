#!/usr/bin/env bash
# DPO (KIND=dpo) or process-DPO (KIND=process_dpo) with the published hyper-parameters of DATASET. Needs the extra dpo.
set -euo pipefail

DATASET=${DATASET:-logiqa2}                             # logiqa2 | reclor
KIND=${KIND:-process_dpo}                               # dpo | process_dpo
ROOT=${ROOT:-outputs/step_ppo/${DATASET}}
MODEL_PATH=${MODEL_PATH:-${ROOT}/sft/huggingface}
DATA=${DATA:-${ROOT}/train.parquet}
OUTPUT=${OUTPUT:-${ROOT}/${KIND}}
LOSS=${LOSS:-sigmoid}                                   # sigmoid | hinge | ipo
BETA=${BETA:-0.1}
LABEL_SMOOTHING=${LABEL_SMOOTHING:-0}
case ${KIND} in
  dpo) PAIRS=${PAIRS:-${ROOT}/round0/outcome_pairs.jsonl} ;;
  process_dpo) PAIRS=${PAIRS:-${ROOT}/round0/pairs.jsonl} ;;
  *) echo "KIND=${KIND}: expected dpo or process_dpo" >&2; exit 2 ;;
esac
case ${DATASET} in
  logiqa2) LR=${LR:-2e-6} ;;
  reclor) LR=${LR:-1e-6} ;;
  *) echo "DATASET=${DATASET}: expected logiqa2 or reclor" >&2; exit 2 ;;
esac
NGPUS=${NGPUS:-4}
MICRO_BATCH=${MICRO_BATCH:-4}
ACCUMULATION=${ACCUMULATION:-4}                         # 64 pairs per update on four devices

exec accelerate launch --num_processes "${NGPUS}" --mixed_precision bf16 --use_fsdp --fsdp_version 2 \
  --fsdp_state_dict_type FULL_STATE_DICT \
  --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP -m recipes.step_ppo.pipeline.dpo \
  --data "${DATA}" --pairs "${PAIRS}" --model "${MODEL_PATH}" --output "${OUTPUT}" \
  --loss "${LOSS}" --beta "${BETA}" --label-smoothing "${LABEL_SMOOTHING}" --learning-rate "${LR}" --epochs 2 \
  --batch-size "${MICRO_BATCH}" --accumulation "${ACCUMULATION}" --warmup-steps 200 "$@"
