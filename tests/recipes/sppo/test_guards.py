"""Every configuration SPPO would run wrong with is refused with the key to set."""

import copy
import functools
import json

import pytest
from omegaconf import OmegaConf

from recipes.core.settings import read
from recipes.errors import ConfigError
from recipes.launch.composition import compose_config
from recipes.sppo.guards import check_sppo_config
from recipes.sppo.settings import SECTION, SppoSettings

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
UPDATES = f"{ACTOR}.optim.override_optimizer_config.updates_per_iteration"


@functools.cache
def preset_config(preset):
    return compose_config("recipes.sppo.config", "sppo", ["scale=toy", f"preset={preset}"])


def composed(*overrides):
    """A preset with keys set, added (+) or deleted (~); Hydra itself would take a second for each."""
    presets = [item.removeprefix("preset=") for item in overrides if item.startswith("preset=")]
    config = copy.deepcopy(preset_config(presets[0] if presets else "verl"))
    OmegaConf.set_struct(config, False)
    for override in overrides:
        key, _, _ = override.lstrip("+").partition("=")
        if override.startswith("~"):
            del config.algorithm[key.removeprefix("~algorithm.")]
        elif key != "preset":
            value = OmegaConf.select(OmegaConf.from_dotlist([override.lstrip("+")]), key)
            OmegaConf.update(config, key, value, merge=False)
    OmegaConf.set_struct(config, True)
    return config


SPPO = "algorithm.sppo"
CORRECTION = "algorithm.rollout_correction"
MODEL = "actor_rollout_ref.model"
LARGE = ["data.train_batch_size=20000", f"{ACTOR}.ppo_mini_batch_size=64"]
BEST_WORST = ["preset=paper", f"{SPPO}.pairs=best_worst"]


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        ([f"{CORRECTION}.bypass_mode=true"], f"{CORRECTION}.bypass_mode"),
        ([f"{CORRECTION}.rollout_is=token"], f"{CORRECTION}.rollout_is"),
        ([f"{CORRECTION}.rollout_rs=token_k1"], f"{CORRECTION}.rollout_rs"),
        ([f"+{ACTOR}.use_rollout_log_probs=true"], f"{ACTOR}.use_rollout_log_probs"),
        (["critic.enable=true"], "critic.enable"),
        (["trainer.use_v1=false"], "trainer.use_v1"),
        (["trainer.v1.trainer_mode=colocate_async"], "trainer.v1.trainer_mode"),
        (["trainer.v1.trainer_mode=separate_async"], "trainer.v1.trainer_mode"),
        (["algorithm.adv_estimator=grpo"], "algorithm.adv_estimator"),
        ([f"{ACTOR}.policy_loss.loss_mode=vanilla"], f"{ACTOR}.policy_loss.loss_mode"),
        (["algorithm.use_kl_in_reward=true"], "algorithm.use_kl_in_reward"),
        ([f"{ACTOR}.use_kl_loss=true"], f"{ACTOR}.use_kl_loss"),
        ([f"{ACTOR}.loss_agg_mode=seq-mean-token-mean"], f"{ACTOR}.loss_agg_mode"),
        ([f"{ACTOR}.loss_scale_factor=512"], f"{ACTOR}.loss_scale_factor"),
        ([f"{SPPO}.scope=prompt"], f"{ROLLOUT}.n"),
        (["data.train_batch_size=1"], "data.train_batch_size"),
        ([f"{ROLLOUT}.temperature=0"], f"{ROLLOUT}.temperature"),
        ([f"{ROLLOUT}.do_sample=false"], f"{ROLLOUT}.do_sample"),
        (["preset=paper", f"{ROLLOUT}.temperature=0.7"], f"{ROLLOUT}.temperature"),
        ([*BEST_WORST, f"{ROLLOUT}.calculate_log_probs=false"], f"{ROLLOUT}.calculate_log_probs"),
        ([f"+{MODEL}.override_config.attention_dropout=0.1"], f"{MODEL}.override_config.attention_dropout"),
        ([f"+{MODEL}.override_config.model_config.resid_pdrop=0.1"], f"{MODEL}.override_config.resid_pdrop"),
        ([f"{MODEL}.lora.rank=8", f"{MODEL}.lora.dropout=0.1"], f"{MODEL}.lora.dropout"),
        ([f"+{ACTOR}.sppo_eta=1.0"], f"{SPPO}.eta"),
        ([f"+{ACTOR}.extra.sppo_eta=1.0"], f"{SPPO}.eta"),
        (["+algorithm.sppo_eta=1.0"], f"{SPPO}.eta"),
        ([f"+{SPPO}.etta=2"], f"{SPPO}.etta"),
        ([f"{SPPO}.eta=0"], f"{SPPO}.eta"),
        ([f"{SPPO}.eta=.nan"], f"{SPPO}.eta"),
        ([f"{SPPO}.baseline=median"], f"{SPPO}.baseline"),
        ([f"{SPPO}.score=winrate"], f"{SPPO}.scope"),
        ([f"{SPPO}.pairs=best_worst"], f"{SPPO}.scope"),
        ([f"{SPPO}.preference=bradley_terry"], f"{SPPO}.score"),
        (["preset=paper", f"{SPPO}.tau=2"], f"{SPPO}.preference"),
        ([f"{SPPO}.reference=iteration:8"], f"{SPPO}.reference"),
        ([f"{SPPO}.eta=1000"], f"{SPPO}.eta"),
        (LARGE, f"{ACTOR}.optim.lr_warmup_steps"),
        (["preset=iterative", "data.train_batch_size=1408"], UPDATES),
        (["preset=iterative", f"{ACTOR}.optim.lr_warmup_steps=5"], f"{ACTOR}.optim.lr_warmup_steps"),
        (["preset=iterative", f"{ACTOR}.optim.lr_scheduler_type=cosine"], f"{ACTOR}.optim.lr_scheduler_type"),
    ],
)
def test_refused(overrides, key):
    with pytest.raises(ConfigError) as refusal:
        check_sppo_config(composed(*overrides))
    assert refusal.value.key == key


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["preset=paper", "algorithm.sppo.pairs=best_worst"],
        ["preset=paper", "algorithm.sppo.preference=bradley_terry", "algorithm.sppo.tau=0.5"],
        ["preset=paper", "algorithm.sppo.score=reward", "algorithm.sppo.pairs=best_worst"],
        ["data.train_batch_size=20000", f"{ACTOR}.ppo_mini_batch_size=64", f"{ACTOR}.optim.lr_warmup_steps=0"],
        ["preset=iterative", "algorithm.sppo.score=reward", "algorithm.sppo.preference=binary"],
        # the baseline may use what SPPO refuses
        ["preset=grpo", f"{ACTOR}.use_kl_loss=true"],
        ["~algorithm.sppo"],
        ["+actor_rollout_ref.model.override_config.attention_dropout=0.0"],
    ],
)
def test_accepted(overrides):
    check_sppo_config(composed(*overrides))


def test_a_local_models_own_dropout_is_refused_unless_overridden(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"attention_dropout": 0.1, "hidden_act": "silu"}))
    overrides = [f"actor_rollout_ref.model.path={tmp_path}"]
    with pytest.raises(ConfigError) as refusal:
        check_sppo_config(composed(*overrides))
    assert refusal.value.key == f"{MODEL}.override_config.attention_dropout"
    overrides.append("+actor_rollout_ref.model.override_config.attention_dropout=0")
    check_sppo_config(composed(*overrides))


def test_a_broken_model_configuration_is_named(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError) as refusal:
        check_sppo_config(composed(f"actor_rollout_ref.model.path={tmp_path}"))
    assert refusal.value.key == f"{MODEL}.path"


def test_a_stock_verl_configuration_without_our_block_takes_the_defaults():
    config = composed("~algorithm.sppo")
    assert read(SppoSettings, config.algorithm.get("sppo"), SECTION) == SppoSettings()
