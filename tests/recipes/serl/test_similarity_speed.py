"""The similarity filter keeps the speed its benchmark reports."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SECONDS_FOR_2000 = 60


# The time is linear in the candidates, so a tenth of them in a tenth of the time shows the same.
@pytest.mark.parametrize("n_candidates", [200, pytest.param(2000, marks=pytest.mark.long)])
def test_benchmark_reaches_its_ratios(n_candidates):
    command = [sys.executable, str(ROOT / "tests" / "benchmarks" / "serl_similarity.py"), str(n_candidates)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    finished = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)
    assert finished.returncode == 0, finished.stderr
    result = json.loads(finished.stdout)
    assert result["seeds_ratio"] >= 300
    assert result["history_seconds"] < SECONDS_FOR_2000 * n_candidates / 2000
