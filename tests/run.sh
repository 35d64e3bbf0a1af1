#!/usr/bin/env bash
# Install as examples/quickstart.sh does and run the tests; --long adds the slower ones. Other arguments go to one pytest.
#
# Two lanes run side by side, since either mostly waits for processes of its own: trainings in one; in the other the unit
# tests, then the trainings of LATER. What the first lane prints comes when it is done (and stands in
# outputs/tests_end_to_end.log). What measures time has the machine to itself after that, and so has what failed beside
# the trainings: it counts as failed if it fails alone, too.

set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../examples/install.sh"

duets_install || exit 1
cd "$DUETS_ROOT" || exit 1
export TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
# The models are tiny: a second thread per process only gets into the way of the next process.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

if [[ $# -gt 1 || ($# -eq 1 && "$1" != --long) ]]; then
    exec "$DUETS_PYTHON" -m pytest "$@"
fi

# What takes as long as the first lane still does when the unit tests are done.
LATER=(tests/end_to_end/test_sft.py tests/recipes tests/examples tests/faults)
# What takes long is listed, so that the lanes can be kept even.
DURATIONS=(--durations=15 --durations-min=20)
# Both lanes train in it; made here, it is not made twice at once.
"$DUETS_PYTHON" examples/toy/make.py --out outputs/toy --seed 0 || exit 1
log=outputs/tests_end_to_end.log
"$DUETS_PYTHON" -m pytest -m e2e "${DURATIONS[@]}" -o cache_dir=outputs/pytest_cache_end_to_end "${LATER[@]/#/--ignore=}" \
    "$@" >"$log" 2>&1 &
lane=$!
trap 'kill "$lane" 2>/dev/null; wait "$lane" 2>/dev/null; exit 130' INT TERM
"$DUETS_PYTHON" -m pytest -m "not e2e" "${DURATIONS[@]}" --ignore=tests/benchmarks "$@"
others=$?
_duets_stage "The end-to-end tests of this lane (after $SECONDS s)"
"$DUETS_PYTHON" -m pytest -m e2e "${DURATIONS[@]}" -o cache_dir=outputs/pytest_cache_later "${LATER[@]}" "$@"
later=$?
_duets_stage "The end-to-end tests of the other lane (after $SECONDS s)"
wait "$lane"
end_to_end=$?
cat "$log"
if ((others == 1)); then
    _duets_stage "What failed beside the trainings, once more alone"
    "$DUETS_PYTHON" -m pytest -m "not e2e" --ignore=tests/benchmarks --last-failed --last-failed-no-failures none "$@"
    others=$?
fi
_duets_stage "The benchmarks (after $SECONDS s)"
"$DUETS_PYTHON" -m pytest tests/benchmarks "$@"
benchmarks=$?
((others == 0 && later == 0 && end_to_end == 0 && benchmarks == 0))
