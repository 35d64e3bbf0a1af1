"""How problems and cores are split among engines; the engines themselves run in test_end_to_end.py."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.core.sampling import Request
from recipes.errors import ConfigError, EnvironmentProblem
from recipes.evaluation.engines import core_ranges, shards
from recipes.evaluation.settings import read_settings


@given(st.integers(0, 50), st.integers(1, 8))
def test_every_problem_goes_to_one_engine_and_all_have_about_as_many(problems, count):
    requests = [Request(str(n), [n], n) for n in range(problems)]
    found = shards(requests, count)
    assert len(found) == count
    assert sorted(request.seed for shard in found for request in shard) == list(range(problems))
    assert max(map(len, found)) - min(map(len, found)) <= 1


def test_engines_have_cores_of_their_own():
    assert core_ranges([0, 1], 2) == ["0", "1"]
    assert core_ranges([2, 3, 5, 7, 11], 2) == ["2,3", "5,7"]
    with pytest.raises(EnvironmentProblem, match="needs as many processor cores, found 1"):
        core_ranges([0], 2)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [(["engines=0"], "engines must be greater"), (["engines=2", "handoff.partner=c/d"], "each turn waits")],
)
def test_bad_numbers_of_engines_are_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        read_settings(["models=[a/b]", "benchmarks=[gsm8k]", *overrides])
