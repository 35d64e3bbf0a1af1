"""Adapter settings that verl would take at one end only."""

import pytest
from omegaconf import OmegaConf
from transformers import LlamaConfig

from recipes.errors import ConfigError
from recipes.launch.adapter_checks import check_adapters

MODEL, ROLLOUT, SAVED = "actor_rollout_ref.model", "actor_rollout_ref.rollout", "checkpoint.save_contents"


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
        OmegaConf.update(config, key, value, force_add=True)
    return config


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {f"{MODEL}.lora_rank": 0, f"{MODEL}.lora_alpha": 0},
        {"actor_rollout_ref.actor.strategy": "megatron", f"{MODEL}.lora.rank": 8},
    ],
)
def test_what_runs_passes(changes):
    check_adapters(tree(**changes))


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({f"{MODEL}.lora.rank": 8}, f"{MODEL}.lora.rank"),
        ({f"{MODEL}.lora_rank": -8}, f"{MODEL}.lora_rank"),
        ({f"{MODEL}.lora_alpha": 0}, f"{MODEL}.lora_alpha"),
        ({f"{ROLLOUT}.layered_summon": True, f"{ROLLOUT}.load_format": "dummy"}, f"{ROLLOUT}.load_format"),
        ({f"actor_rollout_ref.actor.{SAVED}": ["model", "hf_model"]}, f"actor_rollout_ref.actor.{SAVED}"),
        ({"critic.model.lora_rank": 8, f"critic.{SAVED}": ["hf_model"]}, f"critic.{SAVED}"),
        ({"proposer": tree(**{f"{MODEL}.lora_alpha": 0})}, f"proposer.{MODEL}.lora_alpha"),
    ],
)
def test_what_verl_would_read_at_one_end_is_refused(changes, key):
    with pytest.raises(ConfigError) as refused:
        check_adapters(tree(**changes))
    assert refused.value.key == key


def test_a_critic_whose_head_gets_no_adapter_is_refused():
    own = {"critic.model.lora_rank": 8, "critic.model.target_modules": ["q_proj", "v_proj"]}
    with pytest.raises(ConfigError, match="stay random") as refused:
        check_adapters(tree(**own))
    assert refused.value.key == "critic.model.target_modules"
    check_adapters(tree(**own | {"critic.model.target_modules": ["q_proj", "score"]}))
    check_adapters(tree(**own | {"critic.model.target_modules": "all-linear"}))


@pytest.mark.parametrize(
    ("targets", "tied", "says"),
    [
        (["q_proj", "v_proj"], True, None),
        (["q_proj", "c_attn"], False, "c_attn, and no module"),
        (["q_proj", "lm_head"], True, "one tensor for head and embedding"),
        (["embed_tokens"], True, "one tensor for head and embedding"),
        (["q_proj", "lm_head"], False, None),
    ],
)
def test_targets_are_modules_of_the_model_and_no_tied_head(tmp_path, targets, tied, says):
    sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, vocab_size=50)
    LlamaConfig(tie_word_embeddings=tied, **sizes).save_pretrained(tmp_path)
    config = tree(**{f"{MODEL}.path": str(tmp_path), f"{MODEL}.target_modules": targets})
    if says is None:
        check_adapters(config)
        return
    with pytest.raises(ConfigError, match=says) as refused:
        check_adapters(config)
    assert refused.value.key == f"{MODEL}.target_modules"
