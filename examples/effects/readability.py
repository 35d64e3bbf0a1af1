"""How a senior does alone and with a junior, and how the junior reads it."""

import re
import statistics
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch
from policy import EOS, log_probs_of, sample
from two_styles import ALPHABET, MAX_TOKENS, is_right, make_prompt, schedules_of, share_of_a, write_jointly

from recipes.evaluation.partner import cross_entropy
from recipes.tandem.authorship import response_identity

QUESTIONS, TRACES = 300, 100
EDGES = range(2, 101, 2)


@torch.no_grad()
def evaluate(senior, junior, seed: int) -> dict:
    """What the senior can do alone and with the junior, and how the junior reads it; all at temperature 1.

    Returns:
        solo, word, sentence: accuracies; word and sentence are written jointly. cross_entropy: the junior's, nats per
        token on the senior's solo text; excess: that minus the senior's own. fotu: first-order transfer utility of its
        right solo responses; junior: the junior alone on the same prompts. a: share of style A in solo text.
    """
    generator = torch.Generator().manual_seed(1000 * seed + 11)
    prompts = [make_prompt(generator) for _ in range(QUESTIONS)]
    solo = sample(senior, ALPHABET, prompts, max_tokens=MAX_TOKENS, generator=generator)
    right = [is_right(*pair) for pair in zip(prompts, solo.texts, strict=True)]
    found = {"solo": statistics.mean(right)}
    for strategy in ("word", "sentence"):
        identities = [response_identity(row, 0, 0, True) for row in range(QUESTIONS)]
        joint, _ = write_jointly(senior, junior, prompts, schedules_of(strategy, 0.5, seed, identities), generator)
        found[strategy] = statistics.mean(is_right(*pair) for pair in zip(prompts, joint.texts, strict=True))
    ended = (solo.ids == EOS).any(dim=1).tolist()
    by_junior = log_probs_of(junior, solo.prompts, solo.ids)
    surprise, excess = [], []
    for row in (row for row in range(QUESTIONS) if ended[row]):
        kept = solo.mask[row]
        surprise.append(cross_entropy(by_junior[row][kept].tolist()))
        excess.append(surprise[-1] - cross_entropy(solo.log_probs[row][kept].tolist()))
    shares = [share for share in map(share_of_a, solo.texts) if share is not None]
    traces = [(prompts[row], solo.texts[row]) for row in range(QUESTIONS) if right[row] and ended[row]][:TRACES]
    fotu, alone = transfer(junior, traces, generator)
    return found | {
        "cross_entropy": _mean(surprise),
        "excess": _mean(excess),
        "a": _mean(shares),
        "fotu": fotu,
        "junior": alone,
        "unfinished": QUESTIONS - sum(ended),
    }


def transfer(junior, traces: Sequence[tuple[str, str]], generator: torch.Generator) -> tuple[float, float]:
    """Mean first-order transfer utility of the traces, and the junior's accuracy without a prefix."""
    jobs = defaultdict(list)
    sentences = [re.findall(r"[^;]*;|[^;]+$", text) for _, text in traces]
    for row, (prompt, _) in enumerate(traces):
        for cut in range(len(sentences[row])):
            opening = prompt + "".join(sentences[row][:cut])
            jobs[len(opening)].append((row, cut, opening))
    right: dict[tuple[int, int], bool] = {}
    for batch in jobs.values():
        written = sample(junior, ALPHABET, [job[2] for job in batch], max_tokens=MAX_TOKENS, generator=generator)
        for (row, cut, _), text in zip(batch, written.texts, strict=True):
            right[row, cut] = is_right(traces[row][0], text)
    utilities = [first_order([right[row, cut] for cut in range(len(found))]) for row, found in enumerate(sentences)]
    return _mean(utilities), _mean([right[row, 0] for row in range(len(traces))])


def first_order(right: Sequence[bool]) -> float:
    """First-order transfer utility of one response (arXiv 2603.20508).

    The mean of the junior's accuracy at 2, 4, ..., 100 percent of the response: linear between the cuts, flat outside.

    Args:
        right: for each number of sentences given, from none to all but the last, whether the junior was right.
    """
    given = [100 * cut / len(right) for cut in range(len(right))]
    return float(np.interp(EDGES, given, np.asarray(right, dtype=float)).mean())


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
