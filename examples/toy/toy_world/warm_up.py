"""Short supervised warm-up that ends inside a band of greedy held-out accuracy, so that RL has room and signal."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from recipes.launch.cpu import bfloat16_is_faster
from toy_world import starts
from toy_world.formats import Example

UPDATES_BETWEEN_CHECKS = 20
PROBE_SIZE = 100
MAX_UPDATES = 1500


class WarmUpError(RuntimeError):
    """The warm-up missed its band."""


@dataclass(frozen=True)
class Schedule:
    """Rows of an update, and the learning rate after a ramp.

    With ``updates`` there are so many, on a GPU or else in bfloat16 where that is faster, and the rate falls to a
    tenth. Without them, training ends in the band.
    """

    batch: int = 32
    learning_rate: float = 5e-3
    ramp: int = 30
    updates: int | None = None

    def rate(self, update: int) -> float:
        """The learning rate of an update, counted from 1."""
        fall = 1.0 if self.updates is None else 1.0 - 0.9 * (update - 1) / self.updates
        return self.learning_rate * min(1.0, update / self.ramp) * fall


@dataclass(frozen=True)
class Accuracy:
    """Share of problems answered as the grader wants, and share of responses that ended by themselves."""

    graded: float
    finished: float


@dataclass(frozen=True)
class Tokens:
    """Token ids of one example's prompt and of its response, end token included."""

    prompt: list[int]
    response: list[int]


def encode(tokenizer: PreTrainedTokenizerBase, examples: Iterable[Example]) -> list[Tokens]:
    """Tokenize prompts through the chat template and responses as the assistant's turn."""
    return [
        Tokens(
            prompt=tokenizer.apply_chat_template(example.prompt, add_generation_prompt=True)["input_ids"],
            response=[*tokenizer(example.response)["input_ids"], tokenizer.eos_token_id],
        )
        for example in examples
    ]


@torch.no_grad()
def respond(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[list[int]], max_new_tokens: int
) -> tuple[list[str], list[bool]]:
    """Decode all prompts greedily in one batch; the responses, and whether each reached its end token."""
    input_ids, attention_mask = _left_padded(prompts, tokenizer.pad_token_id, model.device)
    model.eval()
    output = model.generate(
        input_ids=input_ids, attention_mask=attention_mask, max_new_tokens=max_new_tokens, do_sample=False
    )[:, input_ids.shape[1] :].tolist()
    model.train()
    finished = [tokenizer.eos_token_id in tokens for tokens in output]
    return tokenizer.batch_decode(output, skip_special_tokens=True), finished


def greedy_accuracy(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: Sequence[Example],
    grade: Callable[[str, str], bool],
    max_new_tokens: int,
) -> Accuracy:
    """Grade the greedy responses to ``examples``."""
    prompts = [tokens.prompt for tokens in encode(tokenizer, examples)]
    responses, finished = respond(model, tokenizer, prompts, max_new_tokens)
    correct = [grade(response, example.ground_truth) for response, example in zip(responses, examples, strict=True)]
    return Accuracy(graded=sum(correct) / len(examples), finished=sum(finished) / len(examples))


def warm_up(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    train: Sequence[Example],
    measure: Callable[[int | None], Accuracy],
    band: tuple[float, float],
    seed: int,
    on_check: Callable[[int, Accuracy], None],
    schedule: Schedule = Schedule(),
    start: str = "",
) -> tuple[int, Accuracy]:
    """Imitate the worked responses until accuracy first reaches the band; the number of updates and the accuracy.

    ``measure(limit)`` measures on the first ``limit`` held-out examples, or on all with None. A small probe saves the
    whole measurement, which costs as much as several updates, while the band is far. ``start`` names the weights that a
    trained model begins with. A toy's warm-up may be kept (`starts`).

    Raises:
        WarmUpError: accuracy jumped over the band, stayed under it for MAX_UPDATES, or responses do not end.
    """

    def train_it() -> dict:
        updates, accuracy = _warm_up(model, tokenizer, train, measure, band, seed, on_check, schedule)
        return {"updates": updates} | vars(accuracy)

    if schedule.updates:  # a pretrained model, too large to keep
        report = train_it()
    else:
        report = starts.train_or_read(
            model, tokenizer, train, (seed, band, start), train_it, lambda: vars(measure(None))
        )
    return report["updates"], Accuracy(report["graded"], report["finished"])


def _warm_up(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    train: Sequence[Example],
    measure: Callable[[int | None], Accuracy],
    band: tuple[float, float],
    seed: int,
    on_check: Callable[[int, Accuracy], None],
    schedule: Schedule,
) -> tuple[int, Accuracy]:
    tokens = encode(tokenizer, (example for example in train if example.response))
    rng = random.Random(f"warm-up {seed}")
    device = "cuda" if schedule.updates and torch.cuda.is_available() else "cpu"
    model.to(device)
    half = bool(schedule.updates) and device == "cpu" and bfloat16_is_faster()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=schedule.learning_rate, weight_decay=0.0, betas=(0.9, 0.98), fused=bool(schedule.updates)
    )
    lowest, highest = band
    batches = _batches(tokens, schedule, rng)
    model.train()
    for update in range(1, (schedule.updates or MAX_UPDATES) + 1):
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate(update)
        optimizer.zero_grad()
        batch = next(batches)
        with torch.autocast(device, torch.bfloat16, enabled=half):
            loss = _loss(model, batch, tokenizer.pad_token_id)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        last = update == schedule.updates
        if update % UPDATES_BETWEEN_CHECKS and not last:
            continue
        if schedule.updates and not last:
            print(f"supervised start: update {update} of {schedule.updates}, loss {loss.item():.3f}", flush=True)
            continue
        accuracy = measure(2 * PROBE_SIZE if last else PROBE_SIZE)
        if accuracy.graded >= 0.75 * lowest and not last:
            accuracy = measure(None)
        on_check(update, accuracy)
        if accuracy.graded < lowest and not last:
            continue
        if not lowest <= accuracy.graded <= highest or accuracy.finished < 0.95:
            raise WarmUpError(
                f"after {update} updates the model answers {accuracy.graded:.1%} and ends {accuracy.finished:.1%} of "
                f"its responses; expected {lowest:.0%} to {highest:.0%} and at least 95 %. Try another --seed."
            )
        return update, accuracy
    raise WarmUpError(
        f"after {MAX_UPDATES} updates the model still answers fewer than {lowest:.0%}. Try another --seed."
    )


def _batches(tokens: Sequence[Tokens], schedule: Schedule, rng: random.Random) -> Iterator[list[Tokens]]:
    """Random batches without end; with so many updates, of rows of about one length, which need little padding."""
    while schedule.updates is None:
        yield rng.sample(tokens, min(schedule.batch, len(tokens)))
    while True:
        drawn = sorted(
            rng.sample(tokens, min(8 * schedule.batch, len(tokens))), key=lambda one: len(one.prompt + one.response)
        )
        batches = [drawn[start : start + schedule.batch] for start in range(0, len(drawn), schedule.batch)]
        rng.shuffle(batches)
        yield from batches


def _loss(model: PreTrainedModel, batch: Sequence[Tokens], pad_token_id: int) -> torch.Tensor:
    """Mean cross-entropy over the response tokens, in nats."""
    input_ids, attention_mask = _left_padded([one.prompt + one.response for one in batch], pad_token_id, model.device)
    longest = max(len(one.response) for one in batch)
    labels = torch.full((len(batch), longest), -100)
    for row, one in enumerate(batch):
        labels[row, longest - len(one.response) :] = torch.tensor(one.response)
    logits = model(input_ids=input_ids, attention_mask=attention_mask, logits_to_keep=longest + 1).logits[:, :-1]
    return cross_entropy(logits.flatten(0, 1), labels.flatten().to(model.device))


def _left_padded(
    rows: Sequence[list[int]], pad_token_id: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(len(row) for row in rows)
    input_ids = torch.tensor([[pad_token_id] * (longest - len(row)) + row for row in rows])
    attention_mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    return input_ids.to(device), attention_mask.to(device)
