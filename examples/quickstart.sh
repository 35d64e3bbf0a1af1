#!/usr/bin/env bash
# Install, make a small world, and train one recipe or more on this machine's CPU:
#
#     bash examples/quickstart.sh [--toy] [recipe ...]        (default: sppo)
#
# The model is SmolLM2-135M and the world is counting letters; with --toy, a network of half a million parameters and
# arithmetic. Held-out accuracy before and after is printed, and two answers to one question; metrics.jsonl, curve.png,
# answers/ and train.log are written per recipe.
#
# From the environment:
#   STEPS   training steps (6; the toy 30)
#   SEED    seed of the run (1); the world itself is always the same
#   HELD_OUT  problems that are answered before and after (200; the toy 500)
#   MORE    further overrides of the run, separated by spaces
#   OUT     folder of the results (outputs/quickstart in this checkout)
#   MODEL_PATH  an instruct model, a folder or a hub's name, in place of SmolLM2-135M
#   USE_PYTHON  an interpreter whose environment has the package with its extras; nothing is installed then

set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/install.sh"

# What a method is shown with on the real model: SeRL without labels.
declare -A REAL=([serl]="variant=majority estimator=grpo" [step_ppo]="preset=outcome")

main() {
    local toy="" recipe number
    if [[ "${1:-}" == --toy ]]; then toy=1 && shift; fi
    local steps="${STEPS:-${toy:+30}}" seed="${SEED:-1}" out="${OUT:-$DUETS_ROOT/outputs/quickstart}"
    local held_out="${HELD_OUT:-${toy:+500}}"
    steps="${steps:-6}" held_out="${held_out:-200}"
    local recipes=("$@")
    ((${#recipes[@]})) || recipes=(sppo)
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
    [[ -n "$toy" ]] || warn_of_slow_processor
    local world
    for recipe in "${recipes[@]}"; do
        _duets_stage "Making the world of $recipe (some minutes the first time)"
        world="$(world_folder "$recipe" "$toy")"
        make_world "$(world_format "$recipe" "$toy")" "$world" || return 1
        _duets_stage "Training $recipe for $steps steps (log: $out/$recipe/train.log)"
        if [[ -n "$toy" && -f "examples/quickstart_$recipe.sh" ]]; then
            TOY_DIR="$world" STEPS="$steps" SEED="$seed" HELD_OUT="$held_out" OUT="$out/$recipe" \
                bash "examples/quickstart_$recipe.sh" || return 1
            continue
        fi
        train "$recipe" "$steps" "$seed" "$out/$recipe" "$world" "$held_out" "$toy" || return 1
        "$DUETS_PYTHON" examples/quickstart_report.py "$out/$recipe/metrics.jsonl" --curve "$out/$recipe/curve.png" \
            --held-out "$held_out" --title "$recipe, $(basename "$world")" --answers "$out/$recipe/answers" || return 1
        [[ -n "$toy" ]] || echo "next, ten steps that keep checkpoints:" \
            "$DUETS_PYTHON -m recipes.$recipe.main scale=smollm2_135m ${REAL[$recipe]:-}"
    done
}

# Without fast bfloat16 start and steps take an hour, and the start says nothing for minutes.
warn_of_slow_processor() {
    "$DUETS_PYTHON" -c 'import sys; from recipes.launch.cpu import bfloat16_is_faster; sys.exit(bfloat16_is_faster())' &&
        echo "This processor computes in float32: expect an hour or more. With --toy it is minutes."
    return 0
}

# A recipe with a format of its own name has a world of its own; the others share one.
world_format() {
    local shared=letters prefix=letters_
    if [[ -n "$2" ]]; then shared=arithmetic prefix=""; fi
    if [[ -f "$DUETS_ROOT/examples/toy/toy_world/formats/$prefix$1.py" ]]; then echo "$prefix$1"; else echo "$shared"; fi
}

world_folder() {
    local format
    format="$(world_format "$1" "$2")"
    if [[ "$format" == arithmetic ]]; then echo "$DUETS_ROOT/outputs/toy"; else echo "$DUETS_ROOT/outputs/toy_$format"; fi
}

make_world() {
    local environment=()
    # As a run of a real model has them (recipes/launch/cpu.py).
    [[ "$1" != letters* ]] || environment=(OMP_WAIT_POLICY=passive GOMP_SPINCOUNT=20000 MALLOC_MMAP_THRESHOLD_=8589934592
        MALLOC_TRIM_THRESHOLD_=17179869184 MALLOC_TOP_PAD_=268435456)
    env "${environment[@]}" "$DUETS_PYTHON" examples/toy/make.py --format "$1" --out "$2" --seed 0
}

train() {
    local recipe="$1" steps="$2" seed="$3" folder="$4" world="$5" held_out="$6" toy="$7" scale=(scale=toy)
    [[ -n "$toy" ]] || scale=(scale=smollm2_135m "trainer.test_freq=$steps" ${REAL[$recipe]:-})
    mkdir -p "$folder" && rm -rf "$folder"/{metrics.jsonl,curve.png,train.log,answers} || return 1
    # The supervisor replaces this subshell, so that a signal meant for the run reaches it and nobody else.
    (
        export TOY_DIR="$world" LETTERS_DIR="$world" VERL_FILE_LOGGER_PATH="$folder/metrics.jsonl"
        exec "$DUETS_PYTHON" examples/quickstart_train.py --steps "$steps" --metrics "$folder/metrics.jsonl" \
            --log "$folder/train.log" -- \
            "$DUETS_PYTHON" -m "recipes.$recipe.main" "${scale[@]}" \
            "trainer.total_training_steps=$steps" "data.seed=$seed" "data.val_max_samples=$held_out" \
            trainer.resume_mode=disable trainer.save_freq=-1 "trainer.default_local_dir=$folder/checkpoints" \
            "trainer.validation_data_dir=$folder/answers" ${MORE:-}
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
