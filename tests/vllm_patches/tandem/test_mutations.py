"""No change of one spot in the schedule, the plan or the scheduler passes their tests, but for those argued here."""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]

FROZEN = "nothing assigns to these objects; frozen only guards against it"
ARGUED = {
    "plan.py": {
        "@dataclasses.dataclass(frozen=True) | True -> False": FROZEN,
        "if lengths.sum() > max_tokens: | Gt -> GtE": "a run that fits exactly is one pass on either way",
    },
    "schedule.py": {},
    "scheduler.py": {},
}
VLLM = [
    "--preload",
    "numpy",
    "hypothesis",
    "pytest",
    "torch",
    "transformers",
    "vllm.entrypoints.llm",
    "vllm.v1.engine.core",
]
TESTS = {
    "plan.py": [HERE / "test_plan.py"],
    "schedule.py": [HERE / "test_schedule.py", HERE / "test_request_rules.py"],
    "scheduler.py": [*VLLM, "--", HERE / "test_engine.py", "-k", "lazy"],
}


@pytest.mark.long
@pytest.mark.timeout(5400)
@pytest.mark.parametrize("module", sorted(TESTS))
def test_every_mutant_is_noticed_or_argued(module):
    if module == "scheduler.py":
        pytest.importorskip("vllm")
    command = [sys.executable, HERE / "mutation_run.py", f"vllm_patches/tandem/{module}", *TESTS[module]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    survivors = {line.split(": ", 1)[1] for line in done.stdout.splitlines() if line.startswith("SURVIVES ")}
    assert survivors - ARGUED[module].keys() == set()
    assert ARGUED[module].keys() - survivors == set(), "argued, but noticed"
