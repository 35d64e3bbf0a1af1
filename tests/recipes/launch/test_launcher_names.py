"""What a launcher makes of the names in its environment."""

import os
import subprocess
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("launcher", ["run_qwen3_4b.sh", "run_qwen3_4b_lora_1gpu.sh"])
def test_a_launcher_takes_any_name_as_text(launcher, tmp_path):
    (tmp_path / "python3").write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    (tmp_path / "python3").chmod(0o755)
    done = subprocess.run(
        ["bash", ROOT / "recipes" / "tandem" / launcher],
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PROJECT": "2025", "EXPERIMENT": "lr=1e-6, [b]"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    names = [line for line in done.stdout.splitlines() if line.startswith(("trainer.project", "trainer.experiment"))]
    read = {found.key_or_group: found.value() for found in OverridesParser.create().parse_overrides(names)}
    assert read == {"trainer.project_name": "2025", "trainer.experiment_name": "lr=1e-6, [b]"}
