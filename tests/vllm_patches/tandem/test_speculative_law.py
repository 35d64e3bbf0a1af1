"""The joint law of whole responses, drafted and verified, against the enumerated law of tandem decoding.

Two toy models over 6 words, given by random logits for every text of up to 5 words; 7,776 texts. The real sampler,
schedule replay and verification write 20,000 responses in one batch, and a chi-square test compares them with the
exact law. Power: the test must reject ordinary speculative decoding, blind acceptance, and drafts with noise of their
own that ignore the request's top-p; each is off by far more than 20,000 samples hide.
"""

import itertools

import numpy as np
import pytest
import torch
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

from vllm_patches.tandem.schedule import SENIOR, AuthorSchedule, ScheduleParams, stream_key
from vllm_patches.tandem.schedule_table import ScheduleTable
from vllm_patches.tandem.speculative.round import commit, replay
from vllm_patches.tandem.speculative.verify import NOTHING, accept_drafts, draw, noise_key, signed64

VOCAB, LENGTH, BOUNDARIES, SAMPLES = 6, 5, [1, 4], 10_000
POWERS = VOCAB ** torch.arange(LENGTH)
STARTS = np.cumsum([0] + [VOCAB**k for k in range(LENGTH + 1)])


def toy_models() -> tuple[torch.Tensor, torch.Tensor]:
    """(texts, V) logits of junior and senior after every text, shortest texts first; the junior is a noisy senior."""
    generator = torch.Generator().manual_seed(3)
    senior = 1.3 * torch.randn(STARTS[LENGTH + 1], VOCAB, generator=generator)
    return senior + 0.9 * torch.randn(senior.shape, generator=generator), senior


def index_of(texts: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """(N,) rows of the logits; ``texts`` (N, LENGTH) padded, ``lengths`` (N,)."""
    digits = torch.where(torch.arange(LENGTH) < lengths[:, None], texts, 0)
    return torch.from_numpy(STARTS)[lengths] + (digits * POWERS).sum(dim=1)


def constrained(logits: torch.Tensor, temperature: float, top_p: float) -> torch.Tensor:
    p = None if top_p == 1 else torch.full((len(logits),), top_p)
    return apply_top_k_top_p(logits / temperature, None, p)


def write(
    models, params: ScheduleParams, num_drafts: int, temperature: float, top_p: float, fault: str = ""
) -> np.ndarray:
    """Token ids (SAMPLES, LENGTH) of as many responses, in rounds of ``num_drafts`` drafts."""
    junior, senior = models
    table = ScheduleTable({"word": BOUNDARIES}, VOCAB)
    rows = np.array([table.add(params) for _ in range(SAMPLES)])
    stream = stream_key(params.seed, params.request)
    keys = torch.tensor([signed64(noise_key(stream, seed, "")) for seed in range(SAMPLES)])
    texts = torch.zeros(SAMPLES, LENGTH + num_drafts + 2, dtype=torch.long)
    lengths = torch.zeros(SAMPLES, dtype=torch.long)

    def sample(model, own, at):
        inside = at.clamp(max=LENGTH)
        return draw(constrained(model[index_of(own[:, :LENGTH], inside)], temperature, top_p), keys, at)

    every = torch.arange(SAMPLES)
    while int(lengths.min()) < LENGTH:
        drafted = texts.clone()
        for k in range(num_drafts):
            drafted[every, lengths + k] = sample(junior, drafted, lengths + k)
        drafts = drafted[every[:, None], lengths[:, None] + torch.arange(num_drafts)]
        ahead = replay(table, rows, drafts.numpy())
        authors = torch.from_numpy(ahead.authors).long()
        if fault == "plain speculation":
            authors = torch.full_like(authors, SENIOR)
        own = torch.stack([sample(senior, drafted, lengths + k) for k in range(num_drafts + 1)], dim=1)
        if fault == "accept all":
            own[:, :-1] = drafts
        emitted, counts = accept_drafts(drafts, torch.full((SAMPLES,), num_drafts), authors, own)
        assert int(counts.min()) >= 1, "every round emits"
        commit(table, rows, ahead, [row[:n] for row, n in zip(emitted.tolist(), counts.tolist(), strict=True)])
        for k in range(num_drafts + 1):
            wrote = emitted[:, k] != NOTHING
            texts[every[wrote], lengths[wrote] + k] = emitted[wrote, k]
        done = lengths >= LENGTH
        lengths = torch.where(done, lengths, lengths + counts).clamp(max=LENGTH)
    return texts[:, :LENGTH].numpy()


def exact_law(models, params: ScheduleParams, temperature: float, top_p: float) -> np.ndarray:
    """(VOCAB ** LENGTH,) the probability of each text, author by author."""
    laws = [constrained(model.clone(), temperature, top_p).double().softmax(-1).numpy() for model in models]
    law = np.empty([VOCAB] * LENGTH)
    for text in itertools.product(range(VOCAB), repeat=LENGTH):
        schedule, probability, index = AuthorSchedule(params, frozenset(BOUNDARIES)), 1.0, 0
        for k, token in enumerate(text):
            probability *= laws[schedule.author][STARTS[k] + index, token]
            schedule.advance(token)
            index += token * VOCAB**k
        law[text] = probability
    assert abs(law.sum() - 1) < 1e-5
    return law.ravel() / law.sum()


@pytest.fixture
def p_value(chi_square):
    """``p(texts, law)``: rare texts are pooled into cells that expect at least 5."""

    def p(texts: np.ndarray, law: np.ndarray) -> float:
        counts = np.bincount(texts @ VOCAB ** np.arange(LENGTH)[::-1], minlength=len(law))
        if counts[law == 0].any():
            return 0.0
        order = np.argsort(law)
        expected = len(texts) * law[order]
        rare = expected < 5
        cell = np.where(rare, np.cumsum(expected) // 5, np.arange(len(order)) + len(order))
        cell = np.unique(cell, return_inverse=True)[1]
        return chi_square(np.bincount(cell, counts[order]), np.bincount(cell, expected))

    return p


CASES = [
    (ScheduleParams("word", seed=3, request=9, max_gap_tokens=2), 1.0, 1.0),
    (ScheduleParams("word", seed=3, request=31), 0.7, 0.9),
    (ScheduleParams("bernoulli", seed=3, request=8), 0.7, 0.9),
    (ScheduleParams("chunk", chunk_size=2), 1.0, 1.0),
    (ScheduleParams("senior"), 1.0, 1.0),
    (ScheduleParams("junior"), 0.7, 0.9),
]
NAMES = ["word", "word-0.7-0.9", "bernoulli-0.7-0.9", "chunk", "senior", "junior-0.7-0.9"]


@pytest.fixture(scope="module")
def models():
    return toy_models()


@pytest.mark.parametrize(("params", "temperature", "top_p"), CASES, ids=NAMES)
def test_the_joint_law_is_tandem_decodings_and_the_text_does_not_depend_on_the_number_of_drafts(
    models, p_value, params, temperature, top_p
):
    texts = write(models, params, 4, temperature, top_p)
    assert p_value(texts, exact_law(models, params, temperature, top_p)) > 1e-3
    assert np.array_equal(texts, write(models, params, 1, temperature, top_p))
    assert np.array_equal(texts, write(models, params, 2, temperature, top_p))


@pytest.mark.parametrize("fault", ["plain speculation", "accept all"])
@pytest.mark.parametrize(("params", "temperature", "top_p"), CASES[:4], ids=NAMES[:4])
def test_the_negative_controls_fail(models, p_value, params, temperature, top_p, fault):
    texts = write(models, params, 4, temperature, top_p, fault)
    assert p_value(texts, exact_law(models, params, temperature, top_p)) < 1e-12


def test_a_junior_that_ignores_top_p_is_seen(models, p_value):
    """The stock drafter samples at the request's temperature alone."""
    params, temperature, top_p = CASES[1]
    law = exact_law(models, params, temperature, top_p)
    junior, senior = models
    table = constrained(senior.clone(), temperature, top_p) * temperature
    texts = write((junior, table), params, 4, temperature, 1.0)
    assert p_value(texts, law) < 1e-12


def test_a_round_by_hand():
    """Junior, senior that agrees, senior that does not; a bonus; no bonus; no drafts."""
    drafts = torch.tensor([[5, 6, 7], [5, 6, 7], [5, 6, 7], [0, 0, 0], [0, 0, 0], [5, 0, 0]])
    counts = torch.tensor([3, 3, 3, 0, 0, 1])
    authors = torch.tensor([[0, 1, 1, 0], [0, 1, 0, 1], [1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 1, 1], [0, 1, 0, 0]])
    own = torch.tensor([[9, 6, 8, 9], [9, 6, 9, 4], [5, 9, 9, 9], [3, 9, 9, 9], [9, 9, 9, 9], [9, 2, 9, 9]])
    emitted, lengths = accept_drafts(drafts, counts, authors, own)
    assert lengths.tolist() == [3, 4, 3, 1, 0, 2]
    rows = [row[:n] for row, n in zip(emitted.tolist(), lengths.tolist(), strict=True)]
    assert rows == [[5, 6, 8], [5, 6, 7, 4], [5, 6, 7], [3], [], [5, 2]]
    assert all(set(row[n:]) <= {NOTHING} for row, n in zip(emitted.tolist(), lengths.tolist(), strict=True))
