"""The layout of a round: which logits the senior samples, what the junior reads next, what is counted."""

import numpy as np
import pytest

from vllm_patches.tandem.schedule import ScheduleParams
from vllm_patches.tandem.schedule_table import ScheduleTable
from vllm_patches.tandem.speculative.round import Outcome, Round


@pytest.fixture
def this() -> Round:
    """Six requests: alternating with three drafts; a prompt that ends, senior first; one that ends, junior first; an
    unfinished chunk; a resumed request that vLLM padded with drafts of -1, junior's turn; the senior with one draft."""
    table = ScheduleTable({}, 100)
    strategies = ["alternating", "senior", "junior", "senior", "junior", "senior"]
    rows = np.array([table.add(ScheduleParams(name)) for name in strategies])
    return Round.of(
        table,
        rows,
        samples=np.array([True, True, True, False, True, True]),
        request_ids=list("abcdef"),
        num_scheduled=np.array([4, 5, 7, 6, 4, 2]),
        drafted={"a": [11, 12, 13], "e": [-1, -1, -1], "f": [21]},
    )


def test_padded_drafts_are_none(this):
    assert this.num_drafts.tolist() == [3, 0, 0, 0, 0, 1]
    assert this.query_lengths.tolist() == [4, 5, 7, 6, 1, 2]


def test_the_senior_samples_its_own_positions_and_nothing_of_an_unfinished_prompt(this):
    requests, positions = this.verified()
    assert list(zip(requests.tolist(), positions.tolist(), strict=True)) == [(0, 0), (0, 2), (1, 0), (5, 0), (5, 1)]
    # one row of logits for a request's last token and one for each draft, the padded ones included
    assert this.logit_starts.tolist() == [0, 4, 5, 6, 7, 11]
    assert this.query_starts.tolist() == [0, 4, 9, 16, 22, 26]


def test_the_junior_reads_two_tokens_after_drafts_and_else_the_input_with_what_followed(this):
    inputs = this.junior_inputs()
    assert np.diff(inputs.ends, prepend=0).tolist() == [2, 5 + 1, 7, 6, 1, 2]
    assert np.flatnonzero(inputs.newest).tolist() == [1, 7, 23], "the newest token of a, b and f"
    assert inputs.requests[inputs.newest].tolist() == [0, 1, 5]
    assert inputs.within[:8].tolist() == [0, 1, 0, 1, 2, 3, 4, 5]


def test_counts(this):
    emitted = [[11, 12, 99], [7], [], [], [], [21, 22]]
    expected = Outcome(rounds=2, drafted=4, emitted=5, reached=4, tested=3, passed=2, silent=2)
    assert this.outcome(emitted) == expected
    assert this.outcome(emitted) + this.outcome([[98], [7], [], [], [], [97]]) == Outcome(4, 8, 7, 6, 5, 2, 4)


def test_a_step_without_drafts(this):
    table = ScheduleTable({}, 100)
    rows = np.array([table.add(ScheduleParams(name)) for name in ("senior", "junior")])
    prompts = Round.of(table, rows, np.array([True, True]), ["a", "b"], np.array([3, 2]), {})
    assert prompts.drafts.shape == (2, 0)
    assert [one.tolist() for one in prompts.verified()] == [[0], [0]]
    assert prompts.outcome([[4], []]) == Outcome(silent=1)
