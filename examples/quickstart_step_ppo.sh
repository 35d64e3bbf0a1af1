#!/usr/bin/env bash
# The whole step-PPO pipeline on the toy world, from trajectories to step-PPO and its outcome-only baseline. Called by
# quickstart.sh --toy with TOY_DIR, STEPS, SEED, HELD_OUT, MORE and OUT. After an interruption, the same command goes on where it
# stopped.
set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
PYTHON="${USE_PYTHON:-$ROOT/.venv/bin/python}"
: "${TOY_DIR:?}" "${STEPS:?}" "${SEED:?}" "${HELD_OUT:?}" "${OUT:?}"
QUESTIONS=${QUESTIONS:-700}                             # whose trajectories are sampled
PRM_QUESTIONS=${PRM_QUESTIONS:-450}                     # of them, whose states train the PRM
DEV_QUESTIONS=${DEV_QUESTIONS:-48}                      # of them, whose states evaluate it
TRUTH=${TRUTH:-16}                                      # completions of each of those
DPO_UPDATES=${DPO_UPDATES:-40}
ARMS=${ARMS:-step_ppo outcome_ppo}                      # what is trained with PPO

# The settings of a CPU run, as the launcher makes them for verl's processes.
export VERL_DUETS_CPU=1 VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
export TOKENIZERS_PARALLELISM=false VLLM_NO_USAGE_STATS=1 VLLM_LOGGING_LEVEL="${VLLM_LOGGING_LEVEL:-WARNING}"
SIZES='"dtype": "float32", "enforce_eager": true, "max_model_len": 160, "max_num_seqs": 256'
ENGINE="{$SIZES, \"max_num_batched_tokens\": 4096, \"kv_cache_memory_bytes\": 134217728}"
SAMPLING=(--temperature 1.0 --max-tokens 96 --engine "$ENGINE")

stage() { echo "== $*"; }

# What was made from another world or seed is made again.
start_over_if_changed() {
    local stamp
    stamp="$(sha256sum <"$TOY_DIR/world.json") $SEED $QUESTIONS $PRM_QUESTIONS $DEV_QUESTIONS $TRUTH $DPO_UPDATES"
    if [[ ! -f "$OUT/made_from" || "$(cat "$OUT/made_from")" != "$stamp" ]]; then
        rm -rf "$OUT/round0" "$OUT/process_dpo" "$OUT/step_ppo" "$OUT/outcome_ppo" "$OUT/report"
        echo "$stamp" >"$OUT/made_from"
    fi
}

ppo() {
    local name="$1" preset="$2"
    local folder="$OUT/$name"
    mkdir -p "$folder"
    stage "$name: $STEPS steps (log: $folder/train.log)"
    VERL_FILE_LOGGER_PATH="$folder/metrics.jsonl" "$PYTHON" "$ROOT/examples/quickstart_train.py" --steps "$STEPS" \
        --metrics "$folder/metrics.jsonl" --log "$folder/train.log" -- \
        "$PYTHON" -m recipes.step_ppo.main scale=toy preset="$preset" data.seed="$SEED" \
        trainer.total_training_steps="$STEPS" data.val_max_samples="$HELD_OUT" \
        trainer.default_local_dir="$folder/checkpoints" \
        actor_rollout_ref.model.path="$OUT/process_dpo" ${MORE:-}
}

mkdir -p "$OUT"
cd "$ROOT"
start_over_if_changed
export STEP_PPO_DIR="$OUT"
RUNS=()

stage "Round 0: collect, states, complete, PRM, score, pairs"
"$PYTHON" -m recipes.step_ppo.pipeline.iterate --data "$TOY_DIR/train.parquet" --output "$OUT/round0" --seed "$SEED" \
    --model "$TOY_DIR/model" --prm-model "$TOY_DIR/model" \
    --prm-questions "$PRM_QUESTIONS" --dev-questions "$DEV_QUESTIONS" \
    --collect-options "--max-questions $QUESTIONS --n 8 ${SAMPLING[*]@Q}" --states-options "--ratio-s 0 --ratio 0.4" \
    --complete-options "${SAMPLING[*]@Q} --top-p 1.0" \
    --prm-options "--dtype float32 --max-length 160 --learning-rate 1e-3 --batch-size 32 --accumulation 1 --epochs 4
        --warmup-steps 10 --seed $SEED" \
    --score-options "--max-length 160 --batch-size 64" --pairs-options "--reduction sum --margin 0.2"
stage "Completions of held-out states, to measure the PRM against"
"$PYTHON" -m recipes.step_ppo.pipeline.complete --data "$TOY_DIR/train.parquet" --states "$OUT/round0/dev_states.jsonl" \
    --model "$TOY_DIR/model" --output "$OUT/round0/dev_truth.jsonl" --n "$TRUTH" --seed "$((SEED + 1000))" \
    --top-p 1.0 "${SAMPLING[@]}"
stage "Process-DPO"
"$PYTHON" -m recipes.step_ppo.pipeline.dpo --data "$TOY_DIR/train.parquet" --pairs "$OUT/round0/pairs.jsonl" \
    --model "$TOY_DIR/model" --output "$OUT/process_dpo" --dtype float32 --no-gradient-checkpointing \
    --max-steps "$DPO_UPDATES" --batch-size 32 --accumulation 1 --warmup-steps 5 --learning-rate 1e-4 --max-length 160 \
    --seed "$SEED"
for arm in $ARMS; do
    if [[ "$arm" == step_ppo ]]; then ppo "$arm" prm; else ppo "$arm" outcome; fi
    RUNS+=("${arm/_ppo/-PPO}=$OUT/$arm/metrics.jsonl")
done
stage "Report ($OUT/report)"
WARM_UP="$("$PYTHON" -c 'import json, sys; print(json.load(open(sys.argv[1]))["models"]["base"]["accuracy"])' \
    "$TOY_DIR/world.json")"
"$PYTHON" -m recipes.step_ppo.pipeline.report --round "$OUT/round0" --truth "$OUT/round0/dev_truth.jsonl" \
    --accuracy warm-up="$WARM_UP" --start process-DPO --held-out "$HELD_OUT" --output "$OUT/report" \
    --run "${RUNS[@]}"
