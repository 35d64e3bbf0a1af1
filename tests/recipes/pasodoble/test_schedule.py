"""The offline schedule: the right number of updates, an end in every case, and a resume in the middle."""

from hypothesis import given
from hypothesis import strategies as st

from recipes.pasodoble.rounds import OfflineIteration
from recipes.pasodoble.settings import OfflineSettings


def run(settings, outcomes, buffer_size=6):
    """Phases of an iteration whose k-th try updates as ``outcomes[k]`` says; beyond its end every try updates."""
    iteration, log = OfflineIteration(settings), []
    while phase := iteration.phase(buffer_size):
        updated = outcomes[len(log)] if len(log) < len(outcomes) else True
        iteration.record(phase, updated=updated)
        log.append((phase, updated))
    return log, iteration


def test_ten_proposer_updates_then_five_of_the_solver():
    log, _ = run(OfflineSettings(), [])
    assert [phase for phase, _ in log] == ["proposer"] * 10 + ["solver"] * 5


def test_skipped_rounds_are_free_and_do_not_reach_the_solver_early():
    log, iteration = run(OfflineSettings(), [False] * 7)
    assert [phase for phase, _ in log] == ["proposer"] * 17 + ["solver"] * 5
    assert iteration.updates == {"proposer": 10, "solver": 5}
    assert iteration.exhausted() == []


def test_an_empty_buffer_ends_the_solver_phase():
    log, iteration = run(OfflineSettings(), [], buffer_size=0)
    assert {phase for phase, _ in log} == {"proposer"}
    assert iteration.exhausted() == []


def test_fruitless_tries_end():
    log, iteration = run(OfflineSettings(), [False] * 10_000)
    assert [phase for phase, _ in log] == ["proposer"] * 200 + ["solver"] * 20
    assert iteration.exhausted() == ["proposer", "solver"]


def test_updates_that_take_the_very_last_try_are_no_want_of_tries():
    log, iteration = run(OfflineSettings(), [False] * 190 + [True] * 10 + [False] * 15)
    assert [phase for phase, _ in log] == ["proposer"] * 200 + ["solver"] * 20
    assert iteration.updates == {"proposer": 10, "solver": 5}
    assert iteration.exhausted() == []


def test_one_fruitless_batch_does_not_poison_the_next():
    log, iteration = run(OfflineSettings(), [True] * 10 + [False, True, False])
    assert [updated for phase, updated in log if phase == "solver"] == [False, True, False, True, True, True, True]
    assert iteration.updates["solver"] == 5


offline = st.builds(OfflineSettings, proposer_updates=st.integers(0, 5), solver_updates=st.integers(0, 4))


@given(offline, st.lists(st.booleans(), max_size=200), st.integers(0, 2))
def test_every_iteration_ends_within_its_bounds(settings, outcomes, buffer_size):
    log, iteration = run(settings, outcomes, buffer_size)
    assert iteration.updates["proposer"] <= settings.proposer_updates
    assert iteration.updates["solver"] <= settings.solver_updates
    assert len(log) <= settings.max_proposer_tries + settings.max_solver_tries
    phases = [phase for phase, _ in log]
    assert phases == sorted(phases)
