#!/usr/bin/env bash
# Install as examples/quickstart.sh does and run the tests; --long adds the slower ones. Other arguments go to one pytest.
#
# Lanes run side by side: trainings and other real runs (runs), what needs a core (units, other_units), what mostly waits
# for processes, limits, servers and Ray (waits). Each line comes as it is printed, behind its lane's name, and stands in
# outputs/tests_LANE.log. What failed beside other lanes runs once more alone, and counts as failed if it fails again;
# outputs/failed_first.txt names it all the same. At the end comes a table of what every test file took.
#
#   RANDOM_ORDER=7 bash tests/run.sh      the files in another order, and the tests of each

set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../examples/install.sh"

duets_install || exit 1
cd "$DUETS_ROOT" || exit 1
export TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
# The models are tiny: a second thread per process only gets into the way of the next process.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
# Ray's 15 leaves its workers nothing beside the other lanes: an import took minutes.
export RAY_worker_niceness="${RAY_worker_niceness:-0}"
# Compiled once, and not by each of some hundred processes.
unset PYTHONDONTWRITEBYTECODE

if [[ $# -gt 1 || ($# -eq 1 && "$1" != --long) ]]; then
    exec "$DUETS_PYTHON" -m pytest "$@"
fi

shopt -s nullglob
WAITS=(tests/faults tests/reward_fns/test_{endpoint,hostile_load,judge,pool}*.py
    tests/recipes/launch/test_{end_of_run,leftovers,resume,wandb_run,monitor}*.py tests/examples/test_{install,quickstart_train}*.py
    tests/recipes/core/test_{reward_call,data_plane}.py tests/recipes/launch/test_cluster.py
    tests/recipes/{serl/test_step,serl/test_queue,step_ppo/test_trainer,tandem/test_junior_weight}.py)
shopt -u nullglob

LONG=("$@")
declare -A ARGUMENTS LANES CODES
# Collecting the other files would take as long as a short test.
ARGUMENTS[runs]="-m e2e $(grep -rl --include="test_*.py" "mark\.e2e" tests | sort | tr "\n" " ")"
ARGUMENTS[waits]="${WAITS[*]}"
ARGUMENTS[units]="tests/recipes ${WAITS[*]/#/--ignore=}"
ARGUMENTS[other_units]="--ignore=tests/recipes ${WAITS[*]/#/--ignore=}"

# Start a lane in the background, or, with more arguments, what is left of it; its process is in LANES.
lane() {
    local name="$1" log="$1${2:+_again}" arguments niceness=0
    shift
    # A training is a chain of processes that start one after the other; what needs a core fills the rest.
    [[ "$name" == *units ]] && niceness=3
    read -ra arguments <<<"${ARGUMENTS[$name]}"
    [[ "$name" == runs ]] || arguments=(-m "not e2e" "${arguments[@]}")
    nice -n "$niceness" "$DUETS_PYTHON" -u -P tests/durations.py "$log" -o "cache_dir=outputs/pytest_cache_$name" "${arguments[@]}" \
        "${LONG[@]}" "$@" > >(tee "outputs/tests_$log.log" | sed -u "s/^/$log: /") 2>&1 &
    LANES[$name]=$!
}

stop() {
    kill -INT "${LANES[@]}" 2>/dev/null
    wait
    exit 130
}

finish() {
    wait "${LANES[$1]}"
    CODES[$1]=$?
    _duets_stage "$1: ended with ${CODES[$1]} after $((SECONDS - started)) s"
}

mkdir -p outputs && rm -rf outputs/failed_first.txt outputs/durations_*.tsv outputs/pytest_cache_*
started=$SECONDS
trap stop INT TERM
lane waits
# The other lanes read it; made here, it is not made twice at once.
"$DUETS_PYTHON" examples/toy/make.py --out outputs/toy --seed 0 || stop
lane runs
lane units
lane other_units
for name in waits runs units other_units; do
    finish "$name"
done
for name in runs units other_units waits; do
    if ((CODES[$name] == 1)); then
        _duets_stage "What failed in $name beside the other lanes, once more alone"
        lane "$name" --last-failed # all of it where it hung and so kept no list
        wait "${LANES[$name]}"
        CODES[$name]=$?
    fi
done
_duets_stage "Seconds, CPU seconds, tests, lane and file; $((SECONDS - started)) s in all"
sort -rn outputs/durations_*.tsv
if [[ -s outputs/failed_first.txt ]]; then
    _duets_stage "What failed, alone or not (outputs/failed_first.txt)"
    cat outputs/failed_first.txt
fi
for code in "${CODES[@]}"; do
    ((code == 0)) || exit 1
done
