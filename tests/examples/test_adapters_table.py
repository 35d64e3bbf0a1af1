"""The table of adapters beside full training is made of the logs, and says what its page says."""

import importlib.util
import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples/adapters"
MARKER = "<!-- python examples/adapters/table.py -->\n"


def load():
    spec = importlib.util.spec_from_file_location("adapters_table", FOLDER / "table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


table = load()


def test_the_page_shows_the_table_of_the_logs():
    assert MARKER + table.table() in (FOLDER / "README.md").read_text(encoding="utf-8")


def test_engine_and_trainer_agree_in_every_step():
    for arm in table.ARMS:
        curves = table.read_curves([arm.log])
        for role in arm.roles:
            steps = sorted(curves[role + table.MEAN])
            assert steps == list(range(1, steps[-1] + 1)), arm
            assert table.largest(curves, role + table.MEAN) < 1e-5, arm


def arm_of(folder, differences, accuracies, name="log"):
    log = folder / f"{name}.jsonl"
    steps = sorted({*differences, *accuracies})
    lines = []
    for step in steps:
        data = {"acc": accuracies[step]} if step in accuracies else {}
        if step in differences:
            data |= {table.MEAN: differences[step], table.LARGEST: 10 * differences[step]}
        lines.append(json.dumps({"step": step, "data": data}))
    log.write_text("\n".join(lines) + "\n")
    return table.Arm("R", "all weights", 3, "acc", log)


def test_change_and_largest_difference_are_over_the_whole_run(tmp_path):
    arm = arm_of(tmp_path, {1: 1e-7, 2: 4e-6, 11: 2e-7}, {0: 0.5, 10: 0.25})
    longer = arm_of(tmp_path, {1: 1e-7}, {0: 0.5, 10: 0.75, 20: 1.0}, "longer")
    header, _, row, other = table.table((arm, longer)).splitlines()
    assert "change to step 10" in header and "| +25.0 |" in other
    assert row.startswith("| R | all weights | 3 | 11 | 50.0 [45.6, 54.4] | 25.0 [")
    assert row.endswith("|  | -25.0 | 4.0e-06 | 4.0e-05 |")


def test_a_log_without_a_start_or_without_differences_is_refused(tmp_path):
    with pytest.raises(table.LogError, match="before training"):
        table.table((arm_of(tmp_path, {1: 1e-7}, {10: 0.5}),))
    with pytest.raises(table.LogError, match="rollout_probs_diff_mean"):
        table.table((arm_of(tmp_path, {}, {0: 0.5}),))
