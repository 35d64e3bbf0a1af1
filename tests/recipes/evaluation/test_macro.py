"""Macro averages against hand computation and against a bootstrap written the long way."""

import json

import numpy as np
import pytest

from recipes.evaluation.main import main
from recipes.evaluation.settings import read_settings
from recipes.evaluation.stats import macro_mean, macro_results, read_macros

MACRO = read_macros({"m": ["a", ["b", "c"]]})


def test_parts_weigh_the_same_and_pooled_benchmarks_by_their_problems():
    scores = {
        "a": {"pass@1": {"1": 1.0, "2": 0.0}},
        "b": {"pass@1": {"1": 1.0, "2": 1.0, "3": 1.0}},
        "c": {"pass@1": {"1": 0.0}},
    }
    found = macro_results(MACRO, scores)["m"]
    assert found["metrics"]["pass@1"]["mean"] == pytest.approx((0.5 + 0.75) / 2)
    assert found["parts"] == [["a"], ["b", "c"]]


def test_the_interval_draws_problems_within_each_part():
    generator = np.random.default_rng(5)
    parts = [generator.random(9), generator.random(40) < 0.3]
    found = macro_mean([list(map(float, part)) for part in parts], seed=3)
    means = [np.mean([generator.choice(part, part.size).mean() for part in parts]) for _ in range(20_000)]
    assert found.low == pytest.approx(np.quantile(means, 0.025), abs=0.01)
    assert found.high == pytest.approx(np.quantile(means, 0.975), abs=0.01)
    assert found.mean == pytest.approx((parts[0].mean() + parts[1].mean()) / 2)
    sure = macro_mean([[1.0] * 4, [0.0] * 5])
    assert sure.mean == 0.5 and sure.low < 0.2, "nine problems that agree do not prove the mean"


def test_what_is_missing_is_said():
    found = macro_results(MACRO, {"a": {"pass@1": {"1": 1.0}}})["m"]
    assert found == {"parts": [["a"], ["b", "c"]], "missing": ["b", "c"]}


def test_a_metric_that_a_benchmark_lacks_has_no_macro():
    scores = {name: {"pass@1": {"1": 1.0}} for name in "abc"}
    scores["a"]["maj@4"] = {"1": 1.0}
    assert list(macro_results(MACRO, scores)["m"]["metrics"]) == ["pass@1"]


def test_the_tandem_protocol_has_the_macro_of_its_papers():
    settings = read_settings(["protocol=published/tandem", "models=[m]", "benchmarks=[math_500]"])
    assert settings.macros == {
        "tandem": (("amc23_25",), ("aime24", "aime25", "aime26"), ("minerva_math",), ("olympiad_581",))
    }


def test_an_evaluation_writes_its_macros(tmp_path):
    rows = [{"problem": f"What is {n}+{n}?", "answer": str(2 * n)} for n in range(4)]
    (tmp_path / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    answers = [
        {
            "problem": str(n),
            "sample": 0,
            "response": rf"\boxed{{{6 if n == 3 else 0}}}",
            "tokens": 4,
            "finish_reason": "length",
        }
        for n in range(4)
    ]
    (tmp_path / "saved.jsonl").write_text("\n".join(map(json.dumps, answers)))
    out = tmp_path / "out"
    arguments = [f"benchmarks=[{tmp_path / 'sums.jsonl'}]", f"score_only={tmp_path / 'saved.jsonl'}"]
    assert main([*arguments, "macro={one: [sums], other: [sums, gsm8k]}", f"output_dir={out}"]) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert summary["macros"]["saved"]["one"]["metrics"]["pass@1"]["mean"] == 0.5
    assert summary["macros"]["saved"]["other"]["missing"] == ["gsm8k"]
    table = (out / "summary.md").read_text()
    assert "| saved | macro one | pass@1 | 50.00 [" in table
    assert "| all, 4 of 4 | 100.0% | 0.0% |" in table, "the share of truncated responses stands beside the number"
