"""What the plug-in costs a process that imports verl."""

import os
import statistics
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = (
    "torch",
    "verl",
    "ray",
    "transformers",
    "vllm",
    "numpy",
    "pandas",
    "tensordict",
    "math_verify",
    "sympy",
    "rich",
)
LIMIT = 1.1


def run_python(*arguments: str, **variables: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | variables,
        timeout=120,
    )


def test_importing_the_plugin_imports_nothing_heavy():
    code = f"import sys, recipes.plugin; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    assert run_python("-c", code).stdout.split() == []


def test_the_plugin_never_raises_when_a_table_target_is_gone():
    code = textwrap.dedent("""
        import sys
        sys.modules["recipes.sppo"] = None
        sys.modules["recipes.core.reward_manager"] = None
        import verl
        from verl.trainer.ppo import core_algos
        from recipes import plugin
        print(sorted(row.name for row in plugin.errors))
    """)
    assert "sppo" in run_python("-c", code).stdout


@pytest.mark.long
def test_importing_verl_with_the_plugin_costs_little_more_than_without():
    """CPU seconds of `import verl`, with and without, in turn, so that both meet the same machine."""
    code = "import verl, resource; r = resource.getrusage(resource.RUSAGE_SELF); print(r.ru_utime + r.ru_stime)"
    policies = ("none", "verl_duets")
    seconds = {policy: [] for policy in policies}
    for _ in range(7):
        for policy in policies:
            done = run_python("-c", code, VERL_USE_EXTERNAL_PLUGINS=policy)
            seconds[policy].append(float(done.stdout.split()[-1]))
    without, with_plugin = (statistics.median(seconds[policy]) for policy in policies)
    assert with_plugin <= LIMIT * without, seconds
