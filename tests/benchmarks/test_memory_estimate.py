"""The memory estimate is within 15 % of what a process really takes, and the documented table is the measured one."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "recipes/common/REFERENCE.md"
MARKER = "<!-- python tests/benchmarks/memory_estimate.py --table -->\n"
TOLERANCE = 0.15


def load_benchmark():
    spec = importlib.util.spec_from_file_location("memory_estimate", Path(__file__).with_name("memory_estimate.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


benchmark = load_benchmark()


def test_the_documented_table_is_that_of_the_last_measurement():
    assert MARKER + benchmark.table(benchmark.RESULTS) in DOCUMENT.read_text(encoding="utf-8")


def test_the_last_measurement_was_within_the_tolerance():
    rows = benchmark.read(benchmark.RESULTS)
    assert [row["case"] for row in rows] == list(benchmark.CASES) and len(rows) >= 6
    ratios = {row["case"]: row["estimate"] / row["measured"] for row in rows}
    assert {name: ratio for name, ratio in ratios.items() if abs(ratio - 1) > TOLERANCE} == {}


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


def measured_anew(names, folder):
    results = folder / "results.jsonl"
    benchmark.run(names, results)
    rows = benchmark.read(results)
    assert [row["case"] for row in rows] == names
    for row in rows:
        assert row["estimate"] == pytest.approx(row["measured"], rel=TOLERANCE), row["case"]
        assert row["building_estimate"] == pytest.approx(row["building_measured"], rel=TOLERANCE), row["case"]


@pytest.mark.timeout(300)
def test_small_models_are_measured_anew(tmp_path):
    """Few parameters and many tokens: half a minute, most of it imports."""
    measured_anew(["long, checkpointing"], tmp_path)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_all_models_are_measured_anew(tmp_path):
    measured_anew(list(benchmark.CASES), tmp_path)
