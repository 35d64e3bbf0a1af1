"""`python -m recipes.step_ppo.pipeline.score`: PRM probabilities at every step end of collected trajectories."""

import argparse
import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

import torch
from torch import Tensor
from tqdm import tqdm

from recipes.step_ppo.labels import class_probability
from recipes.step_ppo.pipeline import command
from recipes.step_ppo.pipeline.data import Question, load_questions
from recipes.step_ppo.pipeline.generation import add_endpoint_arguments, endpoint_settings, in_parallel
from recipes.step_ppo.pipeline.records import Record, expand, open_journal, read
from recipes.step_ppo.pipeline.stage import Tally, add_budget_arguments, budget_from
from recipes.step_ppo.prm_client import token_probabilities
from recipes.step_ppo.steps import segment_response
from recipes.step_ppo.tokens import EncodedTrajectory, encode_trajectory
from reward_fns.endpoint import Endpoint, EndpointSettings
from reward_fns.errors import EndpointError
from reward_fns.result import Skip

Scored = "list[Tensor] | Skip"


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
    """The record of one question: probabilities (steps, K + 1) and step scores of each response."""
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


class LocalScorer:
    """The PRM in this process, on an accelerator where there is one."""

    def __init__(self, path: str, *, batch_size: int, dtype: str, pad_token_id: int):
        from recipes.step_ppo.pipeline.prm_model import load_prm

        self.model = load_prm(path, dtype=getattr(torch, dtype))
        if torch.accelerator.is_available():
            self.model.to(torch.accelerator.current_accelerator())
        self.batch_size, self.pad_token_id = batch_size, pad_token_id

    def run(
        self, work: Iterable[tuple[str, list[EncodedTrajectory]]], on_result: Callable[[str, Scored], None]
    ) -> None:
        from recipes.step_ppo.pipeline.prm_model import step_probabilities

        iterator = iter(work)
        # Several questions at a time, so that trajectories of one length meet in a batch.
        while group := list(islice(iterator, 8)):
            flat = [trajectory for _, trajectories in group for trajectory in trajectories]
            found = iter(
                step_probabilities(self.model, flat, pad_token_id=self.pad_token_id, batch_size=self.batch_size)
            )
            for key, trajectories in group:
                on_result(key, list(islice(found, len(trajectories))))


class EndpointScorer:
    """A PRM served by `vllm serve --runner pooling`."""

    def __init__(self, settings: EndpointSettings):
        self.settings = settings

    def run(
        self, work: Iterable[tuple[str, list[EncodedTrajectory]]], on_result: Callable[[str, Scored], None]
    ) -> None:
        asyncio.run(self._run(iter(work), on_result))

    async def _run(self, work: Iterator, on_result: Callable[[str, Scored], None]) -> None:
        async with Endpoint(self.settings) as endpoint:

            async def worker() -> None:
                for key, trajectories in work:
                    on_result(key, await self._ask(endpoint, trajectories))

            await in_parallel(self.settings.concurrency, worker)

    async def _ask(self, endpoint: Endpoint, trajectories: list[EncodedTrajectory]) -> Scored:
        found = []
        for trajectory in trajectories:
            try:
                rows = await token_probabilities(endpoint, trajectory.ids)
            except EndpointError as error:
                return Skip(f"{error.reason}: {error}")
            found.append(torch.tensor([rows[end] for end in trajectory.ends], dtype=torch.float32))
        return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m recipes.step_ppo.pipeline.score",
        description="Read the PRM at every step end of collected trajectories.",
    )
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
    parser.add_argument("--skip-corrupt", action="store_true", help="leave out lines that do not parse")
    add_budget_arguments(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    from transformers import AutoTokenizer

    args = _parser().parse_args(argv)
    questions = load_questions(args.data)
    trajectories = list(read(expand(args.trajectories), skip_corrupt=args.skip_corrupt))
    tokenizer = AutoTokenizer.from_pretrained(args.prm)
    options = {name: getattr(args, name) for name in ("prm", "classes", "max_length")}
    tally = Tally(budget_from(args))
    with open_journal(args.output, options, skip_corrupt=args.skip_corrupt) as journal:
        pending = [trajectory for trajectory in trajectories if trajectory["key"] not in journal]
        progress = tqdm(
            total=len(trajectories), initial=len(trajectories) - len(pending), desc="score", unit="question"
        )
        encoded: dict[str, tuple] = {}

        def work() -> Iterator[tuple[str, list[EncodedTrajectory]]]:
            for record in pending:
                question = questions[record["id"]]
                encoded[record["key"]] = encode_responses(tokenizer, question, record["responses"], args.max_length)
                yield record["key"], [trajectory for trajectory, _ in encoded[record["key"]][0].values()]

        def on_result(key: str, result: Scored) -> None:
            scorable, unscored = encoded.pop(key)
            if isinstance(result, Skip):
                tally.skip(key, result)
            else:
                journal.append(score_record(key, scorable, unscored, result, args.classes))
                tally.done += 1
            progress.update()

        if pending:
            _scorer(args, tokenizer).run(work(), on_result)
        progress.close()
        print(f"{args.output}: {len(journal)} questions ({tally.summary()})")
    return 0


def _scorer(args: argparse.Namespace, tokenizer) -> LocalScorer | EndpointScorer:
    if args.endpoint:
        return EndpointScorer(endpoint_settings(args, args.served_name or args.prm, key_variable="OPENAI_API_KEY"))
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
    return LocalScorer(args.prm, batch_size=args.batch_size, dtype=args.dtype, pad_token_id=pad)


if __name__ == "__main__":
    command.run(main)
