#!/usr/bin/env bash
# Install, make the toy world, and train one recipe or more on this machine's CPU:
#
#     bash examples/quickstart.sh [recipe ...]        (default: sppo)
#
# Held-out accuracy before and after is printed; metrics.jsonl, curve.png and train.log are written per recipe.
#
# From the environment:
#   STEPS   training steps (30)
#   SEED    seed of the run (1); the toy world itself is always the same
#   HELD_OUT  problems that are answered before and after (500)
#   MORE    further overrides of the run, separated by spaces
#   OUT     folder of the results (outputs/quickstart in this checkout)
#   USE_PYTHON  an interpreter whose environment has the package with its extras; nothing is installed then

set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/install.sh"

main() {
    local steps="${STEPS:-30}" seed="${SEED:-1}" out="${OUT:-$DUETS_ROOT/outputs/quickstart}" recipe
    local held_out="${HELD_OUT:-500}"
    local recipes=("$@")
    ((${#recipes[@]})) || recipes=(sppo)
    local number
    for number in "STEPS=$steps" "SEED=$seed" "HELD_OUT=$held_out"; do
        if [[ ! "${number#*=}" =~ ^[0-9]+$ ]]; then
            _duets_fail "$number is no whole number."
            return 2
        fi
    done
    for recipe in "${recipes[@]}"; do
        if [[ ! -f "$DUETS_ROOT/recipes/$recipe/config/scale/toy.yaml" || ! "$recipe" =~ ^[a-z0-9_]+$ ]]; then
            _duets_fail "there is no recipe '$recipe'; there are: $(known_recipes)."
            return 2
        fi
    done
    mkdir -p "$out" && out="$(cd "$out" && pwd -P)" || {
        _duets_fail "cannot write to $out; set OUT to a folder that can be written."
        return 1
    }
    cd "$DUETS_ROOT" || return 1

    if [[ -n "${USE_PYTHON:-}" ]]; then
        DUETS_PYTHON="$USE_PYTHON"
    else
        duets_install || return 1
    fi
    local world
    for recipe in "${recipes[@]}"; do
        _duets_stage "Making the toy world of $recipe (a minute or two the first time)"
        world="$(world_folder "$recipe")"
        "$DUETS_PYTHON" examples/toy/make.py --format "$(world_format "$recipe")" --out "$world" --seed 0 || return 1
        _duets_stage "Training $recipe for $steps steps (log: $out/$recipe/train.log)"
        if [[ -f "examples/quickstart_$recipe.sh" ]]; then
            TOY_DIR="$world" STEPS="$steps" SEED="$seed" HELD_OUT="$held_out" OUT="$out/$recipe" \
                bash "examples/quickstart_$recipe.sh" || return 1
            continue
        fi
        train "$recipe" "$steps" "$seed" "$out/$recipe" "$world" "$held_out" || return 1
        "$DUETS_PYTHON" examples/quickstart_report.py "$out/$recipe/metrics.jsonl" --curve "$out/$recipe/curve.png" \
            --held-out "$held_out" --title "$recipe on the toy world" || return 1
    done
}

# A recipe with a toy format of its own name has a world of its own; the others share the arithmetic one.
world_format() {
    if [[ -f "$DUETS_ROOT/examples/toy/toy_world/formats/$1.py" ]]; then echo "$1"; else echo arithmetic; fi
}

world_folder() {
    local format
    format="$(world_format "$1")"
    if [[ "$format" == arithmetic ]]; then echo "$DUETS_ROOT/outputs/toy"; else echo "$DUETS_ROOT/outputs/toy_$format"; fi
}

train() {
    local recipe="$1" steps="$2" seed="$3" folder="$4" world="$5" held_out="$6"
    mkdir -p "$folder" && rm -f "$folder/metrics.jsonl" "$folder/curve.png" "$folder/train.log" || return 1
    # The supervisor replaces this subshell, so that a signal meant for the run reaches it and nobody else.
    (
        export TOY_DIR="$world" VERL_FILE_LOGGER_PATH="$folder/metrics.jsonl"
        exec "$DUETS_PYTHON" examples/quickstart_train.py --steps "$steps" --metrics "$folder/metrics.jsonl" \
            --log "$folder/train.log" -- \
            "$DUETS_PYTHON" -m "recipes.$recipe.main" scale=toy \
            "trainer.total_training_steps=$steps" "data.seed=$seed" "data.val_max_samples=$held_out" \
            trainer.resume_mode=disable trainer.save_freq=-1 "trainer.default_local_dir=$folder/checkpoints" ${MORE:-}
    )
}

known_recipes() {
    local scale names=()
    for scale in "$DUETS_ROOT"/recipes/*/config/scale/toy.yaml; do
        [[ -f "$scale" ]] && names+=("$(basename "$(dirname "$(dirname "$(dirname "$scale")")")")")
    done
    (IFS=,; echo "${names[*]}" | sed 's/,/, /g')
}

main "$@"
