"""The speculative mode on vLLM's V2 runner, in engines in a process of their own.

There is no GPU here, and V2 wants Triton. So Triton's interpreter runs V2's kernels (``v2/interpreter.py``), which has
to be arranged before vLLM is imported.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm")

import vllm  # noqa: E402

HERE = Path(__file__).parent


def passed_on_v2(*arguments: str) -> int:
    """How many tests pass on the V2 runner; ``arguments`` of pytest, paths from this folder. All must."""
    pytest.importorskip("triton")
    if not vllm.__version__.startswith("0.28."):
        pytest.skip("the speculative mode on V2 was written for vLLM 0.28")
    # Limits of time are the caller's: the interpreter is slow.
    command = [sys.executable, "-m", "pytest", "-p", "interpreter", "-p", "no:cacheprovider", "-q", "--timeout", "0"]
    run = subprocess.run(
        [*command, *arguments],
        cwd=HERE,
        env=os.environ | {"PYTHONPATH": str(HERE / "v2"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    return int(re.search(r"^(\d+) passed", run.stdout.splitlines()[-1])[1])


@pytest.mark.timeout(1800)
def test_it_writes_what_the_cacheless_loop_writes():
    assert passed_on_v2("v2/engine_tests.py") == 5


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_what_holds_on_v1_holds_on_v2():
    assert passed_on_v2("--long", "test_speculative_engine.py", "test_speculative_shapes.py") > 20
