"""The published hyper-parameters in the launchers of the offline trainings."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from recipes.step_ppo.pipeline import iterate

ROOM = Path(__file__).parents[3] / "recipes" / "step_ppo"


def words_of(launcher, folder, **environment):
    """What the launcher would start, word by word; torchrun, accelerate and Python are not started."""
    for program in ("torchrun", "accelerate", "python3"):
        (folder / program).write_text('#!/bin/bash\nprintf "%s\\0" "$@"\n')
        (folder / program).chmod(0o755)
    names = ("NGPUS", "BATCH", "MICRO_BATCH", "ACCUMULATION", "EPOCHS", "LR", "BETA", "LOSS", "KIND", "ROUND")
    names += ("PRM_LAUNCHER", "PRM_OPTIONS", "ROOT", "OFFLOAD", "SCALE", "PRESET")
    clean = {name: value for name, value in os.environ.items() if name not in names}
    environment = clean | {"PATH": f"{folder}:{os.environ['PATH']}"} | environment
    done = subprocess.run(
        ["bash", ROOM / launcher], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.split("\0")[:-1]


def option(words, name):
    return float(words[words.index(name) + 1])


def per_update(words):
    return option(words, "--num_processes") * option(words, "--batch-size") * option(words, "--accumulation")


@pytest.mark.parametrize(("dataset", "rate", "epochs"), [("logiqa2", 1e-5, 6), ("reclor", 2e-6, 3)])
def test_sft(dataset, rate, epochs, tmp_path):
    words = words_of("run_sft.sh", tmp_path, DATASET=dataset)
    found = OverridesParser.create().parse_overrides([word for word in words if "=" in word and word[:2] != "--"])
    values = {override.key_or_group: override.value() for override in found}
    assert (values["optim.lr"], values["trainer.total_epochs"], values["data.train_batch_size"]) == (rate, epochs, 24)
    assert (values["optim.lr_warmup_steps_ratio"], values["optim.weight_decay"]) == (0.01, 0.01)
    assert (values["optim.betas"], values["optim.override_optimizer_config"]) == ([0.9, 0.95], {"eps": 1e-6})
    # the code decays linearly; verl's default is a constant rate
    assert values["optim.lr_scheduler_type"] == "cosine" and values["data.max_length"] == 2048


@pytest.mark.parametrize(("dataset", "epochs"), [("logiqa2", 2), ("reclor", 4)])
def test_prm(dataset, epochs, tmp_path):
    words = words_of("run_prm.sh", tmp_path, DATASET=dataset)
    assert (option(words, "--learning-rate"), option(words, "--epochs"), option(words, "--warmup-steps")) == (
        1e-6,
        epochs,
        200,
    )
    # a trajectory of 22 steps has its own label and, by ratio_s 0.2 and ratio 0.3, those of 0.3 x 16 states
    assert per_update(words) * (1 + 0.3 * 16) == pytest.approx(64, rel=0.1)


@pytest.mark.parametrize("kind", ["dpo", "process_dpo"])
@pytest.mark.parametrize(("dataset", "rate"), [("logiqa2", 2e-6), ("reclor", 1e-6)])
def test_dpo(kind, dataset, rate, tmp_path):
    words = words_of("run_dpo.sh", tmp_path, DATASET=dataset, KIND=kind)
    assert (option(words, "--learning-rate"), option(words, "--epochs"), option(words, "--beta")) == (rate, 2, 0.1)
    assert (per_update(words), option(words, "--warmup-steps"), option(words, "--label-smoothing")) == (64, 200, 0)


@pytest.mark.parametrize("given", [{}, {"PRM_LAUNCHER": "torchrun --nproc_per_node 2"}, {"NGPUS": "8"}])
def test_the_whole_pipeline_trains_its_prms_on_several_devices(given, tmp_path, capsys):
    (tmp_path / "sft" / "huggingface").mkdir(parents=True)
    words = words_of("run_pipeline_logiqa2.sh", tmp_path, ROOT=str(tmp_path), **given)
    starts = [number for number, word in enumerate(words) if word == "-m"] + [len(words)]
    rounds = [words[a + 2 : b] for a, b in zip(starts, starts[1:], strict=False) if words[a + 1].endswith(".iterate")]
    assert len(rounds) == 2
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
        ("run_step_ppo_logiqa2.sh", {}, True),
        ("run_step_ppo_logiqa2.sh", {"OFFLOAD": "false"}, False),
        ("run_outcome_baseline.sh", {}, True),
        ("run_qwen3_4b.sh", {}, False),
        ("run_qwen3_4b.sh", {"OFFLOAD": "true"}, True),
    ],
)
def test_offloading_is_that_of_actor_and_critic(launcher, given, offloaded, tmp_path):
    words = words_of(launcher, tmp_path, **given)
    values = dict(word.split("=", 1) for word in words if "=" in word)
    for engine in ("actor_rollout_ref.actor.fsdp_config", "critic.fsdp"):
        for part in ("param", "optimizer"):
            assert values[f"{engine}.{part}_offload"] == str(offloaded).lower()
