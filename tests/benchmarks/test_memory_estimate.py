"""The launcher's memory estimate is within 15 % of what verl's own workers took.

``memory_estimate.jsonl`` has the peak of resident memory during two updates of a model of random weights, with its
sizes and the overrides of the run, on FSDP2 without an accelerator. Commit a6d9ccf has the program that measured it.
"""

import json
from pathlib import Path

import pytest

from recipes.launch.composition import compose_config
from recipes.launch.memory import parts_of

ROWS = [json.loads(line) for line in Path(__file__).with_name("memory_estimate.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("row", ROWS, ids=[row["case"] for row in ROWS])
def test_the_estimate_is_what_was_measured(row, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(row["model"]))
    overrides = [item.replace("MODEL", str(tmp_path)) for item in row["overrides"]]
    models, _ = parts_of(compose_config("recipes.sppo.config", "sppo", overrides), "cpu", 0)
    assert models[-1].update == pytest.approx(row["measured"], rel=0.15)
    assert models[-1].building == pytest.approx(row["building_measured"], rel=0.15)
