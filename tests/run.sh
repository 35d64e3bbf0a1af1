#!/usr/bin/env bash
# Install as examples/quickstart.sh does and run the tests; arguments go to pytest (--long adds the slower ones).

set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../examples/install.sh"

duets_install || exit 1
cd "$DUETS_ROOT" || exit 1
export TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
# The models are tiny: a second thread per process only gets into the way of the next process.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
exec "$DUETS_PYTHON" -m pytest "$@"
