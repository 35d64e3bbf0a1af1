"""The launcher's memory estimate is within 15 % of what verl's own workers take."""

import importlib.util
from pathlib import Path

import pytest

TOLERANCE = 0.15


def load_benchmark():
    spec = importlib.util.spec_from_file_location("memory_estimate", Path(__file__).with_name("memory_estimate.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


benchmark = load_benchmark()
ROWS = {row["case"]: row for row in benchmark.read(benchmark.RESULTS)}


def check(name, row):
    estimate = benchmark.estimate_of(benchmark.CASES[name])
    assert estimate.update == pytest.approx(row["measured"], rel=TOLERANCE)
    assert estimate.building == pytest.approx(row["building_measured"], rel=TOLERANCE)


@pytest.mark.parametrize("name", benchmark.CASES)
def test_the_estimate_is_what_was_measured(name):
    check(name, ROWS[name])


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_all_models_are_measured_anew(tmp_path):
    benchmark.run(list(benchmark.CASES), tmp_path / "results.jsonl")
    rows = {row["case"]: row for row in benchmark.read(tmp_path / "results.jsonl")}
    assert list(rows) == list(benchmark.CASES)
    for name, row in rows.items():
        check(name, row)
