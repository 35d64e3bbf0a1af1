#!/usr/bin/env bash
# Cold-start data for both roles: a generator proposes and solves, a judge confirms. Killed, the same command goes on.
# Needs OPENAI_API_KEY in the environment (any value for a local judge without one).
set -euo pipefail

OUTPUT_DIR=${OUTPUT_DIR:-outputs/pasodoble_sft}
GENERATOR_MODEL=${GENERATOR_MODEL:-Qwen/Qwen3-14B}
GENERATOR_BASE_URL=${GENERATOR_BASE_URL:-}               # empty: vLLM in this process
JUDGE_MODEL=${JUDGE_MODEL:-gpt-5-mini}
JUDGE_BASE_URL=${JUDGE_BASE_URL:-}                       # empty: OpenAI
KNOWLEDGE=${KNOWLEDGE:-YouAreSpecialToMe/filtered_MegaMath}
RECORDS=${RECORDS:-2800}
TP=${TP:-1}
CONCURRENCY=${CONCURRENCY:-16}

exec python3 -m recipes.pasodoble.cold_start.make_sft_data \
  --output-dir "${OUTPUT_DIR}" \
  --name pasodoble_sft \
  --knowledge "${KNOWLEDGE}" \
  --records "${RECORDS}" \
  --generator-model "${GENERATOR_MODEL}" \
  --tensor-parallel-size "${TP}" \
  --judge-model "${JUDGE_MODEL}" \
  --concurrency "${CONCURRENCY}" \
  ${GENERATOR_BASE_URL:+--generator-base-url "${GENERATOR_BASE_URL}"} \
  ${JUDGE_BASE_URL:+--judge-base-url "${JUDGE_BASE_URL}"} \
  "$@"
