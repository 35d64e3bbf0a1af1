#!/usr/bin/env bash
# What can only be said on a GPU, one bounded stage after the other; each measurement is written as it is made.
#
#   bash tests/gpu/run.sh                all stages
#   bash tests/gpu/run.sh decoder toy    these
#   bash tests/gpu/run.sh --list         their names, limits and what they need
#
# Results: outputs/gpu/results.jsonl and outputs/gpu/summary.md (GPU_RESULTS names another folder). A stage that cannot run
# on this machine is skipped, with the reason.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
unset PYTHONDONTWRITEBYTECODE  # else each of a run's ten processes compiles vLLM anew
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" TOKENIZERS_PARALLELISM=false
exec "${PYTHON:-python3}" tests/gpu/stages.py "$@"
