"""SPPO's estimator and update cost no more than plain GRPO's."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "sppo_step.py"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_step_costs_at_most_five_percent_more_than_grpo():
    run = subprocess.run(
        [sys.executable, str(BENCHMARK)],
        check=True,
        capture_output=True,
        text=True,
        timeout=590,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    result = json.loads(run.stdout.strip().splitlines()[-1])
    assert result["repeats"] == 20
    assert result["ratio"] <= 1.05 and result["paper_ratio"] <= 1.05
