"""`python -m recipes.step_ppo.pipeline.score`: PRM probabilities at every step end of collected trajectories."""

import argparse
import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

import torch
from torch import Tensor
from transformers import AutoTokenizer

from recipes.core.files import model_digest
from recipes.core.sampling import in_parallel
from recipes.step_ppo.labels import class_probability
from recipes.step_ppo.pipeline import command
from recipes.step_ppo.pipeline.command import own_device
from recipes.step_ppo.pipeline.data import Question, load_questions, require_questions
from recipes.step_ppo.pipeline.prm_model import load_prm, step_probabilities
from recipes.step_ppo.pipeline.records import Record, Trajectories, expand, open_journal, read
from recipes.step_ppo.pipeline.stage import Recorder, add_budget_arguments, add_endpoint_arguments, endpoint_settings
from recipes.step_ppo.prm_client import token_probabilities
from recipes.step_ppo.steps import segment_response
from recipes.step_ppo.tokens import EncodedTrajectory, encode_trajectory
from reward_fns.endpoint import Endpoint, EndpointSettings
from reward_fns.errors import EndpointError

Work = tuple[str, list[EncodedTrajectory]]
"""A question's key and its trajectories."""
OnResult = Callable[[str, "list[Tensor] | EndpointError"], None]


def encode_responses(
    tokenizer, question: Question, responses: Sequence[dict], max_length: int
) -> tuple[dict[int, tuple[EncodedTrajectory, list[str]]], list[dict]]:
    """The responses that can be scored, by index, with the kinds of their steps; and those that cannot, with a
    reason."""
    encoded, unscored = {}, []
    for index, response in enumerate(responses):
        # A cleaned response continues the prompt's tail after a space, which the encoder puts back.
        steps = segment_response(f" {response['text']}", question.style)
        if not steps:
            unscored.append({"response_index": index, "reason": "no_step"})
            continue
        ends = [step.end - 1 for step in steps]
        if ends[0] < 1:
            unscored.append({"response_index": index, "reason": "step_end_in_prompt"})
            continue
        trajectory = encode_trajectory(tokenizer, question.prompt, response["text"], ends)
        if len(trajectory.ids) > max_length:
            unscored.append({"response_index": index, "reason": "too_long"})
            continue
        encoded[index] = (trajectory, [step.kind for step in steps])
    return encoded, unscored


def score_record(
    question_id: str,
    encoded: dict[int, tuple[EncodedTrajectory, list[str]]],
    unscored: list[dict],
    probabilities: Sequence[Tensor],
    classes: Sequence[int],
) -> Record:
    """Make the record of one question: probabilities (steps, K + 1) and step scores of each response."""
    scores = []
    for (index, (_, kinds)), table in zip(encoded.items(), probabilities, strict=True):
        scores.append(
            {
                "response_index": index,
                "kinds": kinds,
                "step_scores": [round(value, 7) for value in class_probability(table.double(), classes).tolist()],
                "probabilities": [[round(p, 7) for p in row] for row in table.tolist()],
            }
        )
    return {"key": question_id, "id": question_id, "scores": scores, "unscored": unscored}


def score_locally(args: argparse.Namespace, pad_token_id: int, work: Iterable[Work], on_result: OnResult) -> None:
    """Ask the PRM in this process, on an accelerator where there is one."""
    device = own_device()
    model = load_prm(args.prm, dtype=getattr(torch, args.dtype)).to(device)
    # Several questions at a time, so that trajectories of one length meet in a batch.
    iterator = iter(work)
    while group := list(islice(iterator, 8)):
        flat = [trajectory for _, trajectories in group for trajectory in trajectories]
        probabilities = iter(step_probabilities(model, flat, pad_token_id=pad_token_id, batch_size=args.batch_size))
        for key, trajectories in group:
            on_result(key, list(islice(probabilities, len(trajectories))))


async def score_served(settings: EndpointSettings, work: Iterable[Work], on_result: OnResult) -> None:
    """Ask a PRM that `vllm serve --runner pooling` serves."""
    async with Endpoint(settings) as endpoint:

        async def ask(item: Work) -> None:
            key, trajectories = item
            tables = []
            try:
                for trajectory in trajectories:
                    rows = await token_probabilities(endpoint, trajectory.ids)
                    tables.append(torch.tensor([rows[end] for end in trajectory.ends], dtype=torch.float32))
            except EndpointError as error:
                on_result(key, error)
            else:
                on_result(key, tables)

        await in_parallel(iter(work), settings.concurrency, ask)


def _parser() -> argparse.ArgumentParser:
    parser = command.parser(__doc__)
    parser.add_argument("--data", nargs="+", required=True, help="prompts made by prepare")
    parser.add_argument("--trajectories", nargs="+", required=True, help="output of collect: files or glob patterns")
    parser.add_argument("--output", required=True, help="jsonl file")
    parser.add_argument("--prm", required=True, help="folder of the PRM; its tokenizer is used with an endpoint too")
    parser.add_argument("--endpoint", help="root of a vLLM server of the PRM; without it the PRM runs in this process")
    parser.add_argument("--served-name", help="endpoint: name of the PRM there (default: --prm)")
    parser.add_argument("--classes", type=int, nargs="+", default=[2, 3], help="values counted as good (default 2 3)")
    parser.add_argument("--max-length", type=int, default=4096, help="longer trajectories get no score (tokens)")
    parser.add_argument("--batch-size", type=int, default=8, help="local: trajectories per forward pass")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="float32", help="local")
    add_endpoint_arguments(parser, timeout=120.0)
    add_budget_arguments(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    questions = load_questions(args.data)
    found = read(expand(args.trajectories), Trajectories)
    trajectories = {record["key"]: record for record in found}
    require_questions(questions, trajectories.values(), args.data)
    tokenizer = AutoTokenizer.from_pretrained(args.prm)
    options = {name: getattr(args, name) for name in ("prm", "classes", "max_length")}
    options["weights"] = model_digest(args.prm)
    with open_journal(args.output, options) as journal:
        recorder = Recorder(journal, trajectories, args, "score")
        encoded: dict[str, tuple] = {}

        def work() -> Iterator[Work]:
            for key in recorder.pending:
                record = trajectories[key]
                encoded[key] = encode_responses(
                    tokenizer, questions[record["id"]], record["responses"], args.max_length
                )
                yield key, [trajectory for trajectory, _ in encoded[key][0].values()]

        def on_result(key: str, found: "list[Tensor] | EndpointError") -> None:
            scorable, unscored = encoded.pop(key)
            failed = isinstance(found, EndpointError)
            recorder.add(key, found if failed else score_record(key, scorable, unscored, found, args.classes))

        if args.endpoint:
            served = endpoint_settings(args, args.served_name or args.prm, key_variable="OPENAI_API_KEY")
            asyncio.run(score_served(served, work(), on_result))
        elif recorder.pending:
            pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
            score_locally(args, pad, work(), on_result)
        print(f"{args.output}: {len(journal)} questions ({recorder.close()})")
    return 0


if __name__ == "__main__":
    command.run(main)
