#!/usr/bin/env bash
# The whole pipeline on LogiQA-v2, from the data to step-PPO: teacher, SFT, round 0, process-DPO, round 1, step-PPO.
# Every stage passes at once when it is done, so the same command goes on after an interruption. DATASET=reclor takes the
# published settings of ReClor, which end with process-DPO; its teacher is an endpoint (OPENAI_API_KEY).
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export DATASET=${DATASET:-logiqa2}
export ROOT=${ROOT:-outputs/step_ppo/${DATASET}}
export BASE_MODEL=${BASE_MODEL:-meta-llama/Llama-2-7b-chat-hf}
case ${DATASET} in
  logiqa2)
    TEACHER=${TEACHER:-meta-llama/Llama-2-70b-chat-hf}
    ASKED=(--engine "${TEACHER_ENGINE:-{\"tensor_parallel_size\": 8\}}") CLEANED=() SPLITS=(train dev test) EPOCHS=2
    PRM_QUESTIONS=${PRM_QUESTIONS:-1256}                # two of twenty shards of the original
    DEV_QUESTIONS=${DEV_QUESTIONS:-628}
    COLLECT="--temperature 0.8" STATES="--ratio-s 0.2 --ratio 0.3" PAIRS="--margin 0.5"
    COMPLETE="--temperature 0.7 --top-p 0.8" ;;
  reclor)
    TEACHER=${TEACHER:-gpt-3.5-turbo-1106}
    ASKED=(--endpoint "${TEACHER_URL:-https://api.openai.com/v1}" --chat)
    CLEANED=(--rules 1.1 --min-lines 8) SPLITS=(train validation) EPOCHS=4
    PRM_QUESTIONS=${PRM_QUESTIONS:-1000}
    DEV_QUESTIONS=${DEV_QUESTIONS:-200}
    COLLECT="--temperature 0.7 --max-tokens 3072 ${CLEANED[*]}" PAIRS="--margin 0.4 --remove-action"
    STATES="--ratio-s 0.2 --ratio 0.5 --min-step 8 --remove-action"
    COMPLETE=$'--temperature 0.8 --top-p 1.0 --require-distinct --min-content --stop "\n\n\n\n" "Context:\n"' ;;
  *) echo "DATASET=${DATASET}: expected logiqa2 or reclor" >&2; exit 2 ;;
esac
SEED=${SEED:-42}
NGPUS=${NGPUS:-4}
PRM_LAUNCHER=${PRM_LAUNCHER:-"accelerate launch --num_processes ${NGPUS} --mixed_precision bf16 --use_fsdp --fsdp_version 2
  --fsdp_state_dict_type FULL_STATE_DICT --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP"}
PRM_OPTIONS=${PRM_OPTIONS:-"--gradient-checkpointing --epochs ${EPOCHS} --batch-size 3 --accumulation 1"}    # see run_prm.sh
STEP="python3 -m recipes.step_ppo.pipeline"

for split in "${SPLITS[@]}"; do
  [[ -f ${ROOT}/${split}.parquet ]] || ${STEP}.prepare --dataset "${DATASET}" --split "${split}" --output "${ROOT}/${split}.parquet"
done
${STEP}.teach --data "${ROOT}/train.parquet" --model "${TEACHER}" "${ASKED[@]}" "${CLEANED[@]}" --seed "${SEED}" \
  --output "${ROOT}/teacher.jsonl" --sft-output "${ROOT}/sft.parquet"
[[ -d ${ROOT}/sft/huggingface ]] || {
  bash "${HERE}/run_sft.sh"
  last=$(find "${ROOT}/sft" -type d -name huggingface | sort -V | tail -n 1)
  ln -sfn "$(realpath "${last}")" "${ROOT}/sft/huggingface"
}
SFT=${ROOT}/sft/huggingface
${STEP}.iterate --data "${ROOT}/train.parquet" --output "${ROOT}/round0" --model "${SFT}" --prm-model "${SFT}" \
  --prm-questions "${PRM_QUESTIONS}" --dev-questions "${DEV_QUESTIONS}" --seed "${SEED}" \
  --collect-options "${COLLECT}" --states-options "${STATES}" --complete-options "${COMPLETE}" \
  --prm-launcher "${PRM_LAUNCHER}" --prm-options "${PRM_OPTIONS}" \
  --pairs-options "${PAIRS}"
${STEP}.pairs --trajectories "${ROOT}/round0/trajectories.jsonl" --output "${ROOT}/round0/outcome_pairs.jsonl"
KIND=process_dpo bash "${HERE}/run_dpo.sh"
[[ ${DATASET} == logiqa2 ]] || exit 0
${STEP}.iterate --data "${ROOT}/train.parquet" --output "${ROOT}/round1" --previous "${ROOT}/round0" \
  --model "${ROOT}/process_dpo" --prm-model "${ROOT}/round0/prm" --prm-questions 1000 \
  --dev-questions "${DEV_QUESTIONS}" --seed "${SEED}" --collect-options "--temperature 1.0" \
  --states-options "--ratio-s 0.2 --ratio 0.5 --remove-action" --complete-options "--temperature 1.0 --top-p 1.0" \
  --prm-launcher "${PRM_LAUNCHER}" --prm-options "${PRM_OPTIONS}" --pairs-options "--margin 0.8"
exec bash "${HERE}/run_step_ppo_logiqa2.sh" "$@"
