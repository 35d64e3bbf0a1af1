#!/usr/bin/env bash
# Tandem RL as published: Qwen3-4B-Instruct-2507 on DeepScaleR, the junior its own frozen start, two GPUs of 80 GB.
# SCALE=qwen3_4b_lora_1gpu: adapters on one GPU. Prepare the data first: python examples/data_preparation/deepscaler.py
# PRESET is tandem, portable, or a baseline: grpo, grpo_n16, kl; other variables: ../launch/launcher.sh.
#
# JUNIOR_DEVICE=1 gives each model a GPU of its own, as the original does: the senior trains and writes on SENIOR_DEVICE (0),
# the junior is served on JUNIOR_DEVICE and asked turn by turn (the portable path of REFERENCE.md) and ends with the run.
# JUNIOR_ARGS is what its vLLM server gets. JUNIOR_PATH is another junior, here and in the tandem engine.
source "$(dirname "${BASH_SOURCE[0]}")/../launch/launcher.sh"

serve_junior() {
  local arguments port log url
  export MODEL_PATH="${MODEL_PATH:-Qwen/Qwen3-4B-Instruct-2507}" CUDA_VISIBLE_DEVICES="${SENIOR_DEVICE:-0}"
  PRESET=portable NGPUS="${NGPUS:-1}"
  # All of the senior on one device of 80 GB leaves room for fewer tokens of a micro-batch than half of it on each of two.
  [[ "${SCALE:-qwen3_4b}" != qwen3_4b ]] || MAX_TOKENS_PER_GPU="${MAX_TOKENS_PER_GPU:-6144}"
  port="$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')"
  log="outputs/junior_${port}.log" url="http://127.0.0.1:${port}"
  mkdir -p outputs
  read -ra arguments <<<"${JUNIOR_ARGS:---max-model-len 4096}"
  # `launch` turns this shell into the driver, whose end is then the signal for the junior to end.
  CUDA_VISIBLE_DEVICES="${JUNIOR_DEVICE}" setpriv --pdeathsig TERM python3 -m vllm.entrypoints.openai.api_server \
    --model "${JUNIOR_PATH:-${MODEL_PATH}}" --host 127.0.0.1 --port "${port}" --served-model-name junior "${arguments[@]}" \
    >"${log}" 2>&1 &
  echo "The junior is loading on device ${JUNIOR_DEVICE}; its log is ${log}."
  until python3 -c "import urllib.request as u; u.urlopen('${url}/health', timeout=5)" 2>/dev/null; do
    kill -0 $! 2>/dev/null || { tail -n 20 "${log}" >&2; echo "The junior did not start; its log is ${log}." >&2; exit 1; }
    sleep 2
  done
  ARGUMENTS=(algorithm.tandem.portable.junior_url="${url}/v1" algorithm.tandem.portable.junior_name=junior)
}

ARGUMENTS=()
[[ -z "${JUNIOR_DEVICE:-}" ]] || serve_junior
if [[ -n "${JUNIOR_PATH:-}" && "${PRESET:-tandem}" == tandem ]]; then
  ARGUMENTS+=("actor_rollout_ref.rollout.engine_kwargs.vllm.tandem_config.junior_model='${JUNIOR_PATH}'")
elif [[ -n "${JUNIOR_PATH:-}" && "${PRESET}" == portable ]]; then
  ARGUMENTS+=("algorithm.tandem.portable.tandem_config.junior_model='${JUNIOR_PATH}'")
fi
launch tandem scale="${SCALE:-qwen3_4b}" ${PRESET:+preset="${PRESET}"} "$@"
