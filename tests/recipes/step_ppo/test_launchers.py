"""What the launchers make of their variables; their keys are the launch matrix's affair."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from recipes.step_ppo.pipeline import iterate

ROOM = Path(__file__).parents[3] / "recipes" / "step_ppo"


def words_of(launcher, folder, **environment):
    """What the launcher would start, word by word; torchrun, accelerate and Python are not started."""
    for program in ("torchrun", "accelerate", "python3"):
        (folder / program).write_text('#!/bin/bash\nprintf "%s\\0" "$@"\n')
        (folder / program).chmod(0o755)
    names = ("NGPUS", "BATCH", "MICRO_BATCH", "ACCUMULATION", "EPOCHS", "LR", "BETA", "LOSS", "KIND", "ROUND")
    names += ("DATASET", "PRM_LAUNCHER", "PRM_OPTIONS", "ROOT", "OFFLOAD", "SCALE", "PRESET")
    clean = {name: value for name, value in os.environ.items() if name not in names}
    environment = clean | {"PATH": f"{folder}:{os.environ['PATH']}"} | environment
    done = subprocess.run(
        ["bash", ROOM / launcher], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.split("\0")[:-1]


def option(words, name):
    return float(words[words.index(name) + 1])


@pytest.mark.parametrize("given", [{}, {"PRM_LAUNCHER": "torchrun --nproc 2"}, {"NGPUS": "8"}, {"DATASET": "reclor"}])
def test_the_whole_pipeline_trains_its_prms_on_several_devices(given, tmp_path, capsys):
    (tmp_path / "sft" / "huggingface").mkdir(parents=True)
    words = words_of("run_pipeline_logiqa2.sh", tmp_path, ROOT=str(tmp_path), **given)
    starts = [number for number, word in enumerate(words) if word == "-m"] + [len(words)]
    rounds = [words[a + 2 : b] for a, b in zip(starts, starts[1:], strict=False) if words[a + 1].endswith(".iterate")]
    assert len(rounds) == (1 if given.get("DATASET") == "reclor" else 2)
    for arguments in rounds:
        iterate.main([*arguments, "--dry-run"])
        (line,) = (line for line in capsys.readouterr().out.splitlines() if "pipeline.prm " in line)
        launcher = shlex.split(line.removeprefix("+ "))
        launcher = launcher[: launcher.index("-m")]
        if given.get("PRM_LAUNCHER"):
            assert launcher == shlex.split(given["PRM_LAUNCHER"])
        else:
            assert launcher[:2] == ["accelerate", "launch"] and option(launcher, "--fsdp_version") == 2
            assert option(launcher, "--num_processes") == float(given.get("NGPUS", 4))
            assert launcher[launcher.index("--fsdp_state_dict_type") + 1] == "FULL_STATE_DICT"


@pytest.mark.parametrize(
    ("launcher", "given", "offloaded"),
    [
        ("run_step_ppo_logiqa2.sh", {"OFFLOAD": "false"}, False),
        ("run_step_ppo_logiqa2.sh", {"OFFLOAD": "true", "SCALE": "qwen3_4b"}, True),
    ],
)
def test_offloading_is_that_of_actor_and_critic(launcher, given, offloaded, tmp_path):
    words = words_of(launcher, tmp_path, **given)
    values = dict(word.split("=", 1) for word in words if "=" in word)
    for engine in ("actor_rollout_ref.actor.fsdp_config", "critic.fsdp"):
        for part in ("param", "optimizer"):
            assert values[f"{engine}.{part}_offload"] == str(offloaded).lower()
