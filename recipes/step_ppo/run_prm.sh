#!/usr/bin/env bash
# The process reward model with the published hyper-parameters of DATASET, from the values of ROUND.
set -euo pipefail

DATASET=${DATASET:-logiqa2}                             # logiqa2 | reclor
ROOT=${ROOT:-outputs/step_ppo/${DATASET}}
ROUND=${ROUND:-round0}
MODEL_PATH=${MODEL_PATH:-${ROOT}/sft/huggingface}
case ${DATASET} in
  logiqa2) EPOCHS=${EPOCHS:-2} ;;
  reclor) EPOCHS=${EPOCHS:-4} ;;
  *) echo "DATASET=${DATASET}: expected logiqa2 or reclor" >&2; exit 2 ;;
esac
NGPUS=${NGPUS:-4}
MICRO_BATCH=${MICRO_BATCH:-3}                           # trajectories; each holds five or six labelled prefixes,
ACCUMULATION=${ACCUMULATION:-1}                         # so 12 on four devices make the code's 64 prefixes per update

exec accelerate launch --num_processes "${NGPUS}" --mixed_precision bf16 --use_fsdp --fsdp_version 2 \
  --fsdp_state_dict_type FULL_STATE_DICT \
  --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP -m recipes.step_ppo.pipeline.prm \
  --data "${ROOT}/train.parquet" --trajectories "${ROOT}/${ROUND}/trajectories.jsonl" \
  --values "${ROOT}/${ROUND}/values.jsonl" --dev-values "${ROOT}/${ROUND}/dev_values.jsonl" \
  --model "${MODEL_PATH}" --output "${ROOT}/${ROUND}/prm" --epochs "${EPOCHS}" --learning-rate 1e-6 \
  --batch-size "${MICRO_BATCH}" --accumulation "${ACCUMULATION}" --warmup-steps 200 --gradient-checkpointing --export-backbone "$@"
