"""The similarity filter keeps the speed its benchmark reports."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_benchmark_reaches_its_ratios():
    command = [sys.executable, str(ROOT / "tests" / "benchmarks" / "serl_similarity.py")]
    finished = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert finished.returncode == 0, finished.stderr
    result = json.loads(finished.stdout)
    assert result["seeds_ratio"]["list"] >= 300
    assert result["seeds_ratio"]["index"] >= 300
    assert result["history_seconds"] < 60
