#!/usr/bin/env bash
# Make the curves of a recipe on SmolLM2-135M again:
#
#     bash examples/reproduce.sh RECIPE [SEED ...]        (default: seed 1)
#
# One run for each arm and seed, ten steps with 500 held-out questions: minutes each on a GPU, hours on two CPU cores. The
# picture and the table are outputs/reproduce/RECIPE/curve.png and table.md. The same command goes on after an interruption and
# makes no finished run again. On SmolLM2 tandem has a world of two styles, of which its junior knows one and the reward prefers the other;
# step_ppo is asked about longer words than its start has learned, with true step labels, a PRM learned from completions (it takes
# a second GPU), or neither; PasoDoble's word-notes have no numbers, so that only questions that teach pass its checks.
#
# From the environment:
#   STEPS       training steps (10)
#   QUESTIONS   from whose completions step_ppo's PRM learns (400: half an hour on two CPU cores)
#   SCALE       smollm2_135m; toy takes a network of half a million parameters
#   MORE        further overrides of every run, separated by spaces
#   USE_PYTHON  an interpreter whose environment has the package; without it the quickstart's is made and used
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/install.sh"

PAIR=actor_rollout_ref.rollout.engine_kwargs.vllm.tandem_config
BONUS=reward.custom_reward_function.path=examples/toy/style_bonus.py
LONGER=preset=centred,data.max_response_length=144,actor_rollout_ref.rollout.max_model_len=240
LABELS=$LONGER,step_ppo.reward.values=function,reward.custom_reward_function.path=examples/toy/letters_steps.py
LABELS+=,reward.reward_model.enable=false,reward.reward_model.enable_resource_pool=false
PRM=reward.reward_model.rollout
REINFORCE=preset=verl,algorithm.adv_estimator=reinforce_plus_plus,actor_rollout_ref.actor.policy_loss.loss_mode=vanilla
KL=actor_rollout_ref.actor.use_kl_loss=true,actor_rollout_ref.actor.kl_loss_coef=0.1
declare -A ARMS=(
    [sppo]="sppo:preset=verl sppo-K5:preset=paper grpo:preset=grpo reinforce:$REINFORCE"
    [serl]="self-instruction:variant=self_instruct,estimator=grpo votes:variant=majority,estimator=grpo
        labels:variant=ground_truth,estimator=grpo
        shuffled:variant=ground_truth,estimator=grpo,data.train_files=WORLD/train_shuffled.parquet"
    [tandem]="tandem:algorithm.tandem.validation=both,$BONUS grpo:$PAIR.prob_senior=1.0,$BONUS
        grpo-kl:$PAIR.prob_senior=1.0,$BONUS,$KL"
    [pasodoble]="trained: frozen:pasodoble.train_proposer=false
        word-notes:pasodoble.train_proposer=false,pasodoble.knowledge.path=WORLD/words.jsonl"
    [step_ppo]="step-labels:$LABELS outcome:$LABELS,step_ppo.reward.scale=0
        learned-prm:$LONGER,$PRM.max_model_len=240,$PRM.response_length=144"
)

# From three completions of each state that the start reaches by itself: a PRM at $STEP_PPO_DIR/round0/prm.
make_prm() {
    local world="$1" questions="${QUESTIONS:-400}" sampling
    sampling='--temperature 1.0 --max-tokens 144 --engine "{\"dtype\": \"bfloat16\", \"enforce_eager\": true, \"max_model_len\": 240,
        \"max_num_seqs\": 128, \"max_num_batched_tokens\": 2048, \"kv_cache_memory_bytes\": 2147483648}"'
    _duets_stage "step_ppo, its PRM (log: $STEP_PPO_DIR.log)"
    "$DUETS_PYTHON" -m recipes.step_ppo.pipeline.iterate --data "$world/train.parquet" --output "$STEP_PPO_DIR/round0" --seed 1 \
        --model "$world/model" --prm-model "$world/model" --prm-questions $((questions * 9 / 10)) \
        --dev-questions $((questions / 10)) --collect-options "--max-questions $questions --n 8 $sampling" \
        --states-options "--ratio-s 0 --ratio 0.5 --style lines" --complete-options "$sampling --top-p 1.0" \
        --prm-options "--max-length 240 --learning-rate 2e-5 --batch-size 16 --accumulation 1 --warmup-steps 10 --seed 1" \
        --score-options "--max-length 240 --batch-size 32" --pairs-options "--reduction sum --margin 0.2" \
        >"$STEP_PPO_DIR.log" 2>&1 || { tail -n 5 "$STEP_PPO_DIR.log" >&2; return 1; }
}

main() {
    local recipe="${1:-}" scale="${SCALE:-smollm2_135m}" format world arm seed folder runs=() more=() shown=()
    if [[ -z "${ARMS[$recipe]:-}" ]]; then
        _duets_fail "there is no recipe '$recipe'; there are: ${!ARMS[*]}."
        return 2
    fi
    shift
    (($#)) || set -- 1
    cd "$DUETS_ROOT" || return 1
    if [[ -n "${USE_PYTHON:-}" ]]; then DUETS_PYTHON="$USE_PYTHON"; else duets_install || return 1; fi

    format="letters_$recipe"
    if [[ "$recipe" == tandem ]]; then format=letters_two_styles; fi
    if [[ "$scale" == toy ]]; then
        format="$recipe"
        ARMS[pasodoble]="${ARMS[pasodoble]%word-notes*}"
        ARMS[step_ppo]="whitened:preset=outcome,critic.model.path=WORLD/model,step_ppo.whiten_advantages=true
            not-whitened:preset=outcome,critic.model.path=WORLD/model"
    fi
    [[ -f "examples/toy/toy_world/formats/$format.py" ]] || format="$([[ "$scale" == toy ]] && echo arithmetic || echo letters)"
    world="outputs/toy$([[ "$format" == arithmetic ]] || echo "_$format")"
    "$DUETS_PYTHON" examples/toy/make.py --format "$format" --seed 0 --out "$world" || return 1
    export LETTERS_DIR="$world"
    if [[ "$format" == letters_two_styles ]]; then
        more+=("$PAIR.junior_model=$world/junior" "evaluation.every=${STEPS:-10}" "evaluation.benchmarks=[$world/test.parquet]"
            "evaluation.partner.readings=[word_handoff,legibility]")
        shown=(--metrics critic/score/mean evaluation/test/{pass@1,word_handoff/pass@1,legibility/nats_per_token})
    fi
    folder="outputs/reproduce/$recipe"
    mkdir -p "$folder"
    if [[ "${ARMS[$recipe]}" == *learned-prm* ]]; then
        STEP_PPO_DIR="$folder/prm-$(sha256sum <"$world/world.json" | cut -c1-8)-${QUESTIONS:-400}"
        export STEP_PPO_DIR
        make_prm "$world" || return 1
    fi
    for seed in "$@"; do
        for arm in ${ARMS[$recipe]}; do
            local name="${arm%%:*}" overrides
            IFS=, read -ra overrides <<<"${arm#*:}"
            overrides=("${overrides[@]//WORLD/$world}")
            _duets_stage "$recipe, $name, seed $seed (log: $folder/$name-$seed.log)"
            VERL_FILE_LOGGER_PATH="$folder/$name-$seed.jsonl" "$DUETS_PYTHON" -m "recipes.$recipe.main" "scale=$scale" \
                "${overrides[@]}" "data.seed=$seed" "actor_rollout_ref.rollout.seed=$seed" "trainer.total_training_steps=${STEPS:-10}" \
                "trainer.experiment_name=reproduce_${recipe}_${name}_$seed" \
                "trainer.default_local_dir=$folder/$name-$seed" "${more[@]}" ${MORE:-} >"$folder/$name-$seed.log" 2>&1 || {
                tail -n 5 "$folder/$name-$seed.log" >&2
                return 1
            }
            runs+=("$name=$folder/$name-$seed.jsonl")
        done
    done
    "$DUETS_PYTHON" -m recipes.evaluation.report "${runs[@]}" --output "$folder/curve.png" --markdown "$folder/table.md" \
        --title "$recipe, $scale" "${shown[@]}"
}

main "$@"
