#!/usr/bin/env bash
# Install a locked stack into the Python on the PATH and check it: the steps of both images.
#
#     bash docker/install.sh cpu|gpu
#
# The lock holds every distribution with its hashes, so nothing is resolved here. torch is not in the CPU's: its CPU build
# is another file on every index.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

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
    *)
        echo "usage: bash docker/install.sh cpu|gpu" >&2
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
