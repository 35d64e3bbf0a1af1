"""Engines in this process: vLLM, and the tandem decoder. Several devices serve one model behind endpoints."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from recipes.core import vllm_engine
from recipes.core.sampling import Request, Sampling
from recipes.evaluation.sample_store import OnDone, SampledResponse, responses_of
from reward_fns.completions import Answer
from vllm_patches.tandem.config import CONFIG_KEY, engine_arguments
from vllm_patches.tandem.outputs import AuthorshipError

RESERVED_TOKENS = 8


class Part(NamedTuple):
    """What one model wrote in its turn: tokens, and whether the response is over."""

    token_ids: list[int]
    finished: bool


class Turn(NamedTuple):
    """What a model is asked for: to go on from these token ids, for at most so many tokens, with this seed."""

    token_ids: list[int]
    max_tokens: int
    seed: int


# (author, turns) -> one Part for each turn
Write = Callable[[str, list[Turn]], list[Part]]


@dataclass
class Handoff:
    """A response with the author of every token.

    Attributes:
        authors: one name per token of `token_ids`.
        ended: "stop" (a model ended it), "length" (the shared budget is spent) or "rounds".
    """

    prompt: Sequence[int]
    budget: int
    seed: int
    token_ids: list[int] = field(default_factory=list)
    authors: list[str] = field(default_factory=list)
    ended: str = "rounds"
    rounds: int = 0


def shared_budget(max_tokens: int, model_length: int, prompt_tokens: int) -> int:
    """Tokens both models may write together: the response limit or what the shorter context window leaves."""
    return max(0, min(max_tokens, model_length - prompt_tokens - RESERVED_TOKENS))


def alternate(
    prompts: Sequence[Sequence[int]],
    write: Write,
    authors: tuple[str, str],
    budgets: Sequence[int],
    seeds: Sequence[int],
    max_rounds: int = 150,
) -> Iterator[tuple[int, Handoff]]:
    """Let two models write each response in turns until one ends it, its budget is spent or the rounds are.

    All open responses take their turn together, as one batch. The seed of a turn is the response's seed + the tokens
    it has so far, so that a response depends on nothing but its own seed.

    Args:
        prompts: token ids of each prompt.
        write: lets one model take a batch of turns.
        authors: names of the two models, the one that starts first.
        budgets: most tokens of each response.

    Yields:
        Position of a prompt and its response, each as soon as it has ended.
    """
    running = {i: Handoff(*values) for i, values in enumerate(zip(prompts, budgets, seeds, strict=True))}
    for number in range(max_rounds):
        for position, response in list(running.items()):
            if response.ended == "rounds" and len(response.token_ids) >= response.budget:
                response.ended = "length"
            if response.ended != "rounds":
                yield position, running.pop(position)
        if not running:
            return
        author = authors[number % 2]
        turns = [
            Turn([*one.prompt, *one.token_ids], one.budget - len(one.token_ids), one.seed + len(one.token_ids))
            for one in running.values()
        ]
        for response, part in zip(running.values(), write(author, turns), strict=True):
            response.token_ids += part.token_ids
            response.authors += [author] * len(part.token_ids)
            response.rounds += 1
            if part.finished or not part.token_ids:
                response.ended = "stop"
    yield from running.items()


def author_spans(
    token_ids: Sequence[int], authors: Sequence[str], author: str, decode: Callable[[Sequence[int]], str]
) -> list[list[int]]:
    """The parts of a response's text that one author wrote, as [start, end) in characters, in order.

    Args:
        authors: author of each token.
        decode: text of token ids; may give fewer characters for a part that ends inside one.
    """
    ends = [k for k in range(1, len(authors)) if authors[k] != authors[k - 1]] + [len(authors)]
    starts = [0, *ends[:-1]]
    parts = [decode(token_ids[start:end]) for start, end in zip(starts, ends, strict=True)]
    if "".join(parts) == decode(token_ids):
        places = [0]
        for part in parts:
            places.append(places[-1] + len(part))
    else:
        # Some tokenizers add or drop a space at the start of a text, and a character may span two authors.
        places = [0] + [len(decode(token_ids[:end]).rstrip("\ufffd")) for end in ends]
    return [
        [places[run], places[run + 1]]
        for run, start in enumerate(starts)
        if authors and authors[start] == author and places[run] < places[run + 1]
    ]


def clipped(spans: Sequence[Sequence[int]], length: int) -> list[list[int]]:
    """The spans of a text that was cut to `length` characters."""
    return [[start, min(end, length)] for start, end in spans if start < length]


def handoff_ratio(handoff: float, solo: float) -> float | None:
    """What of the solo score survives the handoff, or None when the solo score is 0.

    Both must come from the same sampling settings and the same k, or the ratio compares two protocols, not two
    settings.
    """
    return handoff / solo if solo else None


class VllmEngine(vllm_engine.VllmEngine):
    """A model in vLLM's offline engine."""

    def write(self, requests: Sequence[Request], sampling: Sampling, on_done: OnDone) -> None:
        """Write n responses to every request; `on_done` is called in the order in which problems finish."""
        self.generate(requests, sampling, lambda request, answer: on_done(request.key, self.responses(request, answer)))

    def responses(self, request: Request, answer: Answer) -> list[SampledResponse]:
        """The responses to a problem, in the order of their indices."""
        return responses_of(request.key, answer)

    def write_parts(self, turns: Sequence[Turn], sampling: Sampling, separator: str) -> list[Part]:
        """One part of each response, up to and with the token in which `separator` ends.

        That token belongs to the part whole, whatever text it carries after the separator: what the other model reads
        are tokens.
        """
        parts: dict[str, Part] = {}
        self.generate(
            turn_requests(turns),
            part_sampling(sampling, separator),
            lambda request, answer: parts.__setitem__(request.key, part_of(answer, separator)),
        )
        return [parts[str(number)] for number in range(len(turns))]

    def prompt_log_probs(self, token_ids: Sequence[Sequence[int]]) -> list[list[object]]:
        """What `partner.response_log_probs` reads: for each sequence, the log-probability of every token of it."""
        from vllm import SamplingParams

        parameters = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
        prompts = [{"prompt_token_ids": list(ids)} for ids in token_ids]
        return [output.prompt_logprobs for output in self.llm.generate(prompts, parameters, use_tqdm=False)]


def turn_requests(turns: Sequence[Turn]) -> list[Request]:
    """The turns as requests, named by their positions."""
    return [Request(str(number), turn.token_ids, turn.seed, turn.max_tokens) for number, turn in enumerate(turns)]


def part_sampling(sampling: Sampling, separator: str) -> Sampling:
    """The sampling of one part: a single text that ends with `separator`, which stays in it."""
    return dataclasses.replace(sampling, n=1, stop=(separator, *sampling.stop), include_stop=True)


def part_of(answer: Answer, separator: str) -> Part:
    """What one model wrote in its turn; the response is over when it ended by anything but the separator or length."""
    (written,) = answer.completions
    return Part(list(written.token_ids or ()), written.finish_reason == "stop" and written.stop_reason != separator)


@dataclasses.dataclass(frozen=True)
class TandemAnswer(Answer):
    """Completions with, for each of their tokens, whether the model wrote it."""

    own: tuple[Sequence[bool], ...] = ()


class TandemEngine(VllmEngine):
    """A model and its partner in vLLM's offline engine.

    Args:
        model, partner: folders or hub ids; one vocabulary.
        options: those of `vllm.LLM`.
        prob_own: probability that a draw falls on the model.
        max_gap_tokens: most tokens between two draws.

    Raises:
        EnvironmentProblem: the engine refuses the pair, with its reason.
    """

    def __init__(self, model: str, partner: str, options: Mapping[str, Any], prob_own: float, max_gap_tokens: int):
        settings = {"junior_model": partner, "prob_senior": prob_own, "max_gap_tokens": max_gap_tokens}
        super().__init__(model, {**options, **engine_arguments(settings)})

    def extra_arguments(self, request: Request) -> dict[str, Any]:
        # The coins follow the problem, as its samples do.
        return {CONFIG_KEY: {"seed": request.seed}}

    def answer(self, output: Any) -> Answer:
        """The completions in one of vLLM's outputs, with the authors of their tokens."""
        answer = super().answer(output)
        masks = [one.authorship_mask for one in sorted(output.outputs, key=lambda one: one.index)]
        if any(mask is None for mask in masks):
            raise AuthorshipError(f"request {output.request_id}: a response came without its authors")
        return TandemAnswer(answer.completions, answer.prompt_tokens, answer.completion_tokens, tuple(masks))

    def responses(self, request: Request, answer: Answer) -> list[SampledResponse]:
        """The responses to a problem, with what the model wrote of each."""
        samples = []
        for sample, written, mask in zip(
            super().responses(request, answer), answer.completions, answer.own, strict=True
        ):
            authors = ["model" if own else "partner" for own in mask]
            spans = author_spans(
                written.token_ids, authors, "model", lambda ids: self.tokenizer.decode(ids, skip_special_tokens=True)
            )
            own_spans = clipped(spans, len(written.text))
            samples.append(dataclasses.replace(sample, own_tokens=sum(mask), own_spans=own_spans))
        return samples
