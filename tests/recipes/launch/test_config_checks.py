"""Refusals of a composed config that are quick to see alone; test_start.py holds the command line."""

import os

import pytest
from omegaconf import OmegaConf

from recipes.errors import ConfigError, EnvironmentProblem
from recipes.launch import checks

FUNCTION = "def compute_score(**arguments):\n    return 1.0\n"


def reward_config(path, **faults):
    return OmegaConf.create(
        {
            "reward": {
                "custom_reward_function": {"path": str(path), "name": "compute_score"},
                "reward_manager": {"name": "score_skip_fail"},
                "reward_model": {"enable": False},
            },
            "algorithm": {"reward_faults": faults},
        }
    )


def test_a_reward_file_that_raises_as_it_is_imported_is_one_sentence(tmp_path):
    (tmp_path / "reward.py").write_text("import no_such_module")
    with pytest.raises(ConfigError, match="no_such_module") as refused:
        checks.check_users_code(reward_config(tmp_path / "reward.py"))
    assert refused.value.key == "reward.custom_reward_function.name"


@pytest.mark.parametrize(
    ("line", "faults", "reason"),
    [
        ("mmap.mmap(-1, 3 << 30)", {"memory_limit": 16 << 20}, "memory_limit leaves 0.5 GiB of .*=16777216 bytes"),
        ("time.sleep(60)", {"time_limit": 0.5}, "not_loaded: over 0.5 s.*time_limit=0.5 s"),
        ("os._exit(3)", {}, "not_loaded: the worker ended with exit code 3"),
    ],
)
def test_a_reward_function_is_loaded_once_under_its_limits_before_ray_starts(
    tmp_path, monkeypatch, line, faults, reason
):
    """The driver has no such limits: it could load the function, and no worker of the run could."""
    start = f"import mmap, os, time\nif os.environ.get('WORKER'):\n    {line}\n"
    (tmp_path / "reward.py").write_text(start + FUNCTION)
    checks.check_group_stage(reward_config(tmp_path / "reward.py", **faults))
    monkeypatch.setenv("WORKER", "1")
    monkeypatch.setattr("verl.utils.import_utils.load_extern_object", lambda path, name: len)
    with pytest.raises(ConfigError, match=f"cannot load it .*{reason}"):
        checks.check_group_stage(reward_config(tmp_path / "reward.py", **faults))


def test_what_the_default_limits_leave_holds_the_libraries_of_cuda(tmp_path):
    (tmp_path / "reward.py").write_text(f"import mmap\nheld = mmap.mmap(-1, 3 << 30)\n{FUNCTION}")
    checks.check_group_stage(reward_config(tmp_path / "reward.py"))


def test_wandb_is_asked_for_what_it_would_refuse_when_all_models_are_loaded(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    trainer = OmegaConf.create({"logger": ["console", "wandb"], "project_name": "mine"})
    with pytest.raises(EnvironmentProblem, match="wandb has no key"):
        checks.check_wandb(trainer)
    monkeypatch.setenv("WANDB_MODE", "offline")
    checks.check_wandb(trainer)
    with pytest.raises(ConfigError) as refused:
        checks.check_wandb(OmegaConf.merge(trainer, {"project_name": "team/mine"}))
    assert refused.value.key == "trainer.project_name"
    checks.check_wandb(OmegaConf.create({"logger": "console", "project_name": "team/mine"}))
    with pytest.raises(ConfigError, match="null"):
        checks.check_loggers(None)


def test_no_arguments_for_a_reward_function_are_none(tmp_path):
    """A scale cannot take a key away, so it sets null, of which verl's worker makes no dict."""
    (tmp_path / "reward.py").write_text(FUNCTION)
    config = reward_config(tmp_path / "reward.py")
    config.reward.custom_reward_function.reward_kwargs = None
    OmegaConf.set_struct(config, True)
    checks.check_users_code(config)
    assert config.reward.custom_reward_function.reward_kwargs == {}


def test_several_turns_are_refused(composed):
    config = composed("sppo", "scale=toy")
    checks.check_one_turn(config)
    config.actor_rollout_ref.rollout.multi_turn.enable = True
    with pytest.raises(ConfigError) as refused:
        checks.check_one_turn(config)
    assert refused.value.key == "actor_rollout_ref.rollout.multi_turn.enable"
