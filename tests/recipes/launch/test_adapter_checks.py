"""Adapter settings that verl would take at one end only."""

import pytest
from omegaconf import OmegaConf

from recipes.errors import ConfigError
from recipes.launch.adapter_checks import check_adapters


def tree(**changes):
    config = OmegaConf.create(
        {
            "actor_rollout_ref": {
                "model": {"lora_rank": 8, "lora_alpha": 16, "lora": {"rank": 0, "merge": False}},
                "actor": {"strategy": "fsdp2", "checkpoint": {"save_contents": ["model", "optimizer", "extra"]}},
                "rollout": {"load_format": "auto", "layered_summon": False},
            },
            "critic": {"model": {"lora_rank": 0}, "checkpoint": {"save_contents": ["model"]}},
        }
    )
    for key, value in changes.items():
        OmegaConf.update(config, key.replace("__", "."), value, force_add=True)
    return config


def test_what_runs_passes():
    check_adapters(tree())
    check_adapters(tree(actor_rollout_ref__model__lora_rank=0, actor_rollout_ref__model__lora_alpha=0))
    check_adapters(tree(actor_rollout_ref__actor__strategy="megatron", actor_rollout_ref__model__lora__rank=8))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"actor_rollout_ref__model__lora__rank": 8}, "FSDP trains all weights under it"),
        ({"actor_rollout_ref__model__lora_rank": 1024}, "at most 512"),
        ({"actor_rollout_ref__model__lora_alpha": 0}, "switches the adapters off"),
        (
            {"actor_rollout_ref__rollout__layered_summon": True, "actor_rollout_ref__rollout__load_format": "dummy"},
            "gives the engine no base model",
        ),
        ({"actor_rollout_ref__actor__checkpoint__save_contents": ["model", "hf_model"]}, "loads as random weights"),
        (
            {"critic__model__lora_rank": 8, "critic__checkpoint__save_contents": ["hf_model"]},
            "critic.checkpoint.save_contents",
        ),
    ],
)
def test_what_verl_would_read_at_one_end_is_refused(changes, sentence):
    with pytest.raises(ConfigError, match=sentence):
        check_adapters(tree(**changes))


def test_the_other_role_is_looked_at_too():
    config = tree()
    config.proposer = tree(actor_rollout_ref__model__lora_alpha=0)
    with pytest.raises(ConfigError, match="^proposer.actor_rollout_ref.model.lora_alpha"):
        check_adapters(config)
