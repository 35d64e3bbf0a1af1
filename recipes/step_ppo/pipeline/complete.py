"""`python -m recipes.step_ppo.pipeline.complete`: K completions per intermediate state.

The value of a state is the number of completions that reach the right answer.
"""

import argparse
from collections import Counter
from collections.abc import Sequence

from recipes.core.sampling import Request, request_seed
from recipes.step_ppo.labels import state_value
from recipes.step_ppo.pipeline import command
from recipes.step_ppo.pipeline.data import Question, load_questions
from recipes.step_ppo.pipeline.records import Record, State, expand, open_journal, read
from recipes.step_ppo.pipeline.stage import (
    add_arguments,
    add_budget_arguments,
    correct,
    generate_into,
    judge,
    sampling_options,
)
from recipes.step_ppo.tokens import encode_state, load_tokenizer
from reward_fns.result import Skip


def state_prompt(tokenizer, question: Question, state: Record) -> list[int]:
    """Encode the token ids that a completion of the state continues."""
    return encode_state(tokenizer, question.prompt, state["prefix"], state["rest"])


def value_record(
    question: Question,
    state: Record,
    completions: Sequence[str],
    *,
    require_distinct: bool = False,
    min_content: bool = False,
    keep_completions: bool = False,
) -> Record | Skip:
    """Make the record of one state: hits, or None with the reason why the state is left out."""
    texts = list(dict.fromkeys(filter(None, completions)))
    results = dict(zip(texts, judge(question, texts), strict=True))
    if skip := next((result for result in results.values() if isinstance(result, Skip)), None):
        return skip
    estimate = state_value(
        completions,
        lambda text: correct(results[text]),
        require_distinct=require_distinct,
        prefix=state["prefix"] if min_content else None,
    )
    record = {name: state[name] for name in ("key", "id", "response_index", "step", "kind")}
    record |= {"value": estimate.value, "reason": estimate.reason, "num_completions": len(completions)}
    record["prefix_length"] = len(state["prefix"])
    if keep_completions:
        record["completions"] = list(completions)
    return record


def _parser() -> argparse.ArgumentParser:
    parser = command.parser(__doc__)
    parser.add_argument("--data", nargs="+", required=True, help="prompts made by prepare")
    parser.add_argument("--states", nargs="+", required=True, help="output of states: files or glob patterns")
    parser.add_argument("--output", required=True, help="jsonl file")
    parser.add_argument("--tokenizer", help="folder or id of the model's tokenizer (default: --model)")
    parser.add_argument("--require-distinct", action="store_true", help="leave out states with equal completions")
    parser.add_argument("--min-content", action="store_true", help="leave out states whose last step is nearly empty")
    parser.add_argument("--keep-completions", action="store_true", help="write the texts, not only the hits")
    add_budget_arguments(parser)
    add_arguments(parser, n=3, temperature=0.7, top_p=0.8)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    if args.chat:
        raise SystemExit("complete: chat completions cannot go on in the middle of a response; leave --chat out")
    questions = load_questions(args.data)
    states = {r["key"]: r for r in read(expand(args.states), State)}
    if missing := next((s["id"] for s in states.values() if s["id"] not in questions), None):
        raise SystemExit(f"the states name question {missing}, which {args.data} does not hold")
    choices = {name: getattr(args, name) for name in ("require_distinct", "min_content", "keep_completions")}
    tokenizer = load_tokenizer(args.tokenizer or args.model)
    with open_journal(args.output, sampling_options(args) | choices) as journal:
        requests = [
            Request(key, state_prompt(tokenizer, questions[state["id"]], state), request_seed(args.seed, key))
            for key, state in states.items()
        ]
        summary, engine = generate_into(
            journal,
            requests,
            args,
            lambda request, texts: value_record(
                questions[states[request.key]["id"]], states[request.key], texts, **choices
            ),
            "complete",
        )
        print(f"{args.output}: {len(journal)} states ({summary})")
    values = Counter(record["value"] for record in read([args.output]))
    print("values: " + ", ".join(f"{value}: {count}" for value, count in sorted(values.items(), key=str)))
    if engine is not None and (hit_rate := engine.prefix_cache_hit_rate()) is not None:
        print(f"prefix cache: {hit_rate:.1%} of the prompt tokens were already computed")
    return 0


if __name__ == "__main__":
    command.run(main)
