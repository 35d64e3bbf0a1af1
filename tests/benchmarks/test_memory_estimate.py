"""The memory estimate is within 15 % of what a process really takes, and its formulas are those that were measured."""

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


def test_the_formulas_are_those_that_were_measured():
    """A change of a formula shows here until the table is measured anew."""
    from recipes.launch.memory import Shape, Training

    for row in benchmark.read(benchmark.RESULTS):
        case = benchmark.CASES[row["case"]]
        shape = Shape.from_config(case.sizes | {"model_type": case.kind.lower()})
        estimate = Training(
            shape,
            rank=case.rank,
            compute=case.compute,
            tokens=case.rows * case.length,
            padded=not case.packed,
            masked=case.rows * case.length if case.packed else case.length,
            checkpointing=case.checkpointing,
            head=not case.critic,
            host=True,
        )
        assert (estimate.update, estimate.building) == (row["estimate"], row["building_estimate"]), row["case"]


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_all_models_are_measured_anew(tmp_path):
    results = tmp_path / "results.jsonl"
    benchmark.run(list(benchmark.CASES), results)
    rows = benchmark.read(results)
    assert [row["case"] for row in rows] == list(benchmark.CASES)
    for row in rows:
        assert row["estimate"] == pytest.approx(row["measured"], rel=TOLERANCE), row["case"]
        assert row["building_estimate"] == pytest.approx(row["building_measured"], rel=TOLERANCE), row["case"]
