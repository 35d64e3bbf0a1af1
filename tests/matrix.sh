#!/usr/bin/env bash
# Build one environment for each row of tests/matrix/run.py, run the unit tests and two steps of every recipe in it, and
# add what passed, with the commit, to outputs/matrix/results.jsonl:
#
#     bash tests/matrix.sh [ROW ...]        (default: all rows)
#
# A row takes about 40 minutes on 2 cores and 5 GB of disk, which is freed when it is done; its logs stand in
# outputs/matrix/ROW. From the environment:
#
#   PYTHON   an interpreter, 3.11 or 3.12 (python3.11)
#   KEEP     1 keeps the environments, and a kept one is used again

set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
exec "${PYTHON:-python3.11}" tests/matrix/run.py "$@"
