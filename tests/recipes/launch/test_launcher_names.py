"""What a launcher makes of the names and paths in its environment."""

import os
import subprocess
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

RECIPES = Path(__file__).parents[3] / "recipes"
NOT_HYDRA = {"run_dpo.sh", "run_prm.sh", "run_pipeline_logiqa2.sh"}
LAUNCHERS = sorted(str(path.relative_to(RECIPES)) for path in RECIPES.glob("*/run_*.sh") if path.name not in NOT_HYDRA)
PATHS = ("MODEL_PATH", "BASE_MODEL", "PRM_PATH", "CRITIC_PATH", "JUNIOR_PATH", "KNOWLEDGE", "DATA_DIR")
PATHS += ("OUTPUT", "OUTPUT_DIR")
HOSTILE = "/data/lr=1e-6, (2) [b]/{c}"


def overrides_of(launcher, folder, **environment):
    """The launcher's Hydra arguments, read as Hydra reads them; the trainer itself is not started."""
    for program in ("python3", "torchrun"):
        (folder / program).write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
        (folder / program).chmod(0o755)
    cleared = {name: value for name, value in os.environ.items() if name not in ("LORA_RANK", "EXPERIMENT", "PROJECT")}
    done = subprocess.run(
        ["bash", RECIPES / launcher],
        env=cleared | {"PATH": f"{folder}:{os.environ['PATH']}", "ROLE": "solver"} | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    lines = [line for line in done.stdout.splitlines() if "=" in line and not line.startswith("--")]
    assert lines, done.stderr
    return {found.key_or_group: found.value() for found in OverridesParser.create().parse_overrides(lines)}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_launcher_takes_any_name_and_any_path_as_text(launcher, tmp_path):
    values = dict.fromkeys(PATHS, HOSTILE) | {"PROJECT": "2025", "EXPERIMENT": "lr=1e-6, [b]"}
    read = overrides_of(launcher, tmp_path, **values)
    assert read["trainer.project_name"] == "2025"
    if launcher != "pasodoble/run_sft.sh":  # which has ROLE and NAME
        assert read["trainer.experiment_name"] == "lr=1e-6, [b]"
    found = [str(value) for key, value in read.items() if "/data/lr" in str(value)]
    assert found
    assert all(value.startswith((HOSTILE, f"['{HOSTILE}")) for value in found)
    assert read.get("model.path", read.get("actor_rollout_ref.model.path", HOSTILE)) == HOSTILE


@pytest.mark.parametrize("launcher", [name for name in LAUNCHERS if "sft" not in name])
def test_adapters_have_checkpoints_of_their_own(launcher, tmp_path):
    """A run with adapters must not find the checkpoints of one without."""
    adapted = overrides_of(launcher, tmp_path, LORA_RANK="16")
    assert adapted["actor_rollout_ref.model.lora_rank"] == 16
    assert adapted["trainer.default_local_dir"].endswith("/${trainer.experiment_name}_lora16")
