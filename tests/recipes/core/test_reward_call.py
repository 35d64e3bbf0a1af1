"""Loading a user's reward function in a worker: not counted against the limits of a call, and bounded all the same."""

from pathlib import Path

import pytest

from recipes.core.reward_manager import result_of
from reward_fns.pool import Kind, Pool
from reward_fns.result import Score, Skip

MAPPING = str(Path(__file__).with_name("mapping_reward.py"))
CALL = "recipes.core.reward_call:call"
ARGUMENTS = {"data_source": "toy", "solution_str": "right", "ground_truth": "right"}
# Allocates until it is stopped, as a heap and as a mapping of the process's own.
BALLOONS = {"heap": "bytearray(16 << 20)", "mapping": "mmap.mmap(-1, 1 << 30)"}


def test_what_is_mapped_as_the_function_is_loaded_is_not_counted():
    """CUDA's libraries alone map more than the limit; what a response makes the function take is still held."""
    with Pool(1, time_limit=60, memory_limit=1 << 30, preload=()) as pool:
        first, second = (pool.run(CALL, MAPPING, "compute_score", ARGUMENTS).value for _ in range(2))
        assert first["status"] == "score", first
        assert second["score"] == first["score"] > 1, "the worker was replaced, and loaded the function again"
        balloon = pool.run(CALL, MAPPING, "compute_score", ARGUMENTS | {"solution_str": "balloon"})
        assert balloon.kind is Kind.MEMORY


@pytest.mark.parametrize("piece", BALLOONS)
def test_a_module_that_balloons_is_bounded_and_is_not_the_fault_of_a_response(tmp_path, piece):
    balloon = tmp_path / "balloon.py"
    balloon.write_text(f"import mmap\nkept = []\nwhile True:\n    kept.append({BALLOONS[piece]})\n")
    with Pool(1, time_limit=60, memory_limit=16 << 20, preload=()) as pool:
        outcome = pool.run(CALL, str(balloon), "compute_score", ARGUMENTS)
    assert outcome.kind is Kind.DONE and outcome.value["status"] == "skip", outcome
    assert "algorithm.reward_faults.memory_limit leaves 0.5 GiB" in outcome.value["reason"]


@pytest.mark.parametrize("error", ["MemoryError", "ImportError('failed to map segment')", "OSError(12, 'no memory')"])
def test_a_module_that_cannot_be_loaded_is_not_the_fault_of_a_response(tmp_path, error):
    module = tmp_path / "module.py"
    module.write_text(f"raise {error}")
    with Pool(1, time_limit=60, memory_limit=1 << 30, preload=()) as pool:
        outcome = pool.run(CALL, str(module), "compute_score", ARGUMENTS)
    assert outcome.kind is Kind.DONE and outcome.value["status"] == "skip", outcome
    assert outcome.value["reason"].startswith(f"raised_{error.partition('(')[0]}: ")
    assert "algorithm.reward_faults.memory_limit leaves 32 GiB" in outcome.value["reason"]


@pytest.mark.parametrize(
    ("loading", "calling", "kind"),
    [
        ("time.sleep(60)", "1.0", Kind.NOT_LOADED),
        ("os._exit(3)", "1.0", Kind.NOT_LOADED),
        ("os.abort()", "1.0", Kind.NOT_LOADED),
        ("0", "time.sleep(60)", Kind.TIME_OUT),
        ("0", "os._exit(3)", Kind.CRASH),
    ],
)
def test_time_and_crashes_of_loading_are_told_from_those_of_a_call(tmp_path, loading, calling, kind):
    """A response is to blame for the second only."""
    module = tmp_path / "module.py"
    module.write_text(f"import os, time\n{loading}\ndef compute_score(**arguments):\n    return {calling}\n")
    with Pool(1, time_limit=5, memory_limit=1 << 30, preload=()) as pool:
        outcome = pool.run(CALL, str(module), "compute_score", ARGUMENTS)
    assert outcome.kind is kind, outcome
    verdict = result_of(outcome)
    assert isinstance(verdict, Skip if kind is Kind.NOT_LOADED else Score), verdict


def test_a_module_that_raised_as_it_was_loaded_leaves_no_trace(tmp_path):
    """What another function takes in the same worker is its own."""
    broken, slow = tmp_path / "broken.py", tmp_path / "slow.py"
    broken.write_text("raise ImportError\n")
    slow.write_text("import time\ndef compute_score(**arguments):\n    time.sleep(60)\n")
    with Pool(1, time_limit=5, memory_limit=1 << 30, preload=()) as pool:
        assert pool.run(CALL, str(broken), "compute_score", ARGUMENTS).value["status"] == "skip"
        assert pool.run(CALL, str(slow), "compute_score", ARGUMENTS).kind is Kind.TIME_OUT
