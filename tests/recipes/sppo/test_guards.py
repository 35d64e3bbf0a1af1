"""Every configuration SPPO would run wrong with is refused in one sentence that names the key."""

import copy
import functools
import json

import pytest
from omegaconf import OmegaConf

from recipes.common.settings import read
from recipes.errors import ConfigError
from recipes.launch.composition import compose_config
from recipes.sppo.guards import check_sppo_config
from recipes.sppo.settings import SECTION, SppoSettings

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"


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


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["algorithm.rollout_correction.bypass_mode=true"], "bypass_mode"),
        (["algorithm.rollout_correction.rollout_is=token"], "rollout_is"),
        (["algorithm.rollout_correction.rollout_rs=token_k1"], "rollout_rs"),
        ([f"+{ACTOR}.use_rollout_log_probs=true"], "use_rollout_log_probs"),
        (["critic.enable=true"], "critic.enable"),
        (["trainer.use_v1=false"], "use_v1"),
        (["trainer.v1.trainer_mode=colocate_async"], "trainer_mode"),
        (["trainer.v1.trainer_mode=separate_async"], "trainer_mode"),
        (["algorithm.adv_estimator=grpo"], "loss_mode=sppo"),
        (["algorithm.adv_estimator=null"], "adv_estimator=None"),
        ([f"{ACTOR}.policy_loss.loss_mode=vanilla"], "adv_estimator=sppo"),
        (["algorithm.use_kl_in_reward=true"], "use_kl_in_reward"),
        ([f"{ACTOR}.use_kl_loss=true"], "use_kl_loss"),
        ([f"{ACTOR}.loss_agg_mode=seq-mean-token-mean"], "loss_agg_mode"),
        ([f"{ACTOR}.loss_agg_mode=token-sum"], "loss_agg_mode"),
        ([f"{ACTOR}.loss_scale_factor=512"], "loss_scale_factor"),
        (["algorithm.sppo.scope=prompt"], "rollout.n"),
        (["preset=paper", f"{ROLLOUT}.n=1"], "rollout.n"),
        (["data.train_batch_size=1"], "train_batch_size"),
        ([f"{ROLLOUT}.temperature=0"], "temperature"),
        ([f"{ROLLOUT}.do_sample=false"], "do_sample"),
        (["preset=paper", f"{ROLLOUT}.temperature=0.7"], "temperature"),
        (
            ["preset=paper", "algorithm.sppo.pairs=best_worst", f"{ROLLOUT}.calculate_log_probs=false"],
            "calculate_log_probs",
        ),
        (["+actor_rollout_ref.model.override_config.attention_dropout=0.1"], "attention_dropout"),
        (["+actor_rollout_ref.model.override_config.model_config.resid_pdrop=0.1"], "resid_pdrop"),
        (["actor_rollout_ref.model.lora.rank=8", "actor_rollout_ref.model.lora.dropout=0.1"], "lora.dropout"),
        ([f"+{ACTOR}.sppo_eta=1.0"], "algorithm.sppo.eta"),
        ([f"+{ACTOR}.extra.sppo_eta=1.0"], "algorithm.sppo.eta"),
        (["+algorithm.sppo_eta=1.0"], "algorithm.sppo.eta"),
        (["+algorithm.sppo.etta=2"], "etta"),
        (["+algorithm.sppo.length_norm=true"], "length_norm"),
        (["algorithm.sppo.eta=0"], "algorithm.sppo.eta"),
        (["algorithm.sppo.eta=-1"], "algorithm.sppo.eta"),
        (["algorithm.sppo.eta=.nan"], "algorithm.sppo.eta"),
        (["algorithm.sppo.eta=true"], "algorithm.sppo.eta"),
        (["algorithm.sppo.eta=null"], "algorithm.sppo.eta"),
        (["algorithm.sppo.eta=large"], "algorithm.sppo.eta"),
        (["algorithm.sppo.baseline=median"], "baseline"),
        (["algorithm.sppo.scope=global"], "scope"),
        (["algorithm.sppo.score=elo"], "score"),
        (["algorithm.sppo.score=winrate"], "scope=prompt"),
        (["algorithm.sppo.pairs=best_worst"], "scope=prompt"),
        (["algorithm.sppo.preference=bradley_terry"], "score=winrate"),
        (["algorithm.sppo.tau=2"], "score=winrate"),
        (["preset=paper", "algorithm.sppo.tau=2"], "bradley_terry"),
        (["preset=paper", "algorithm.sppo.preference=bradley_terry", "algorithm.sppo.tau=0"], "tau"),
        (["algorithm.sppo.reference=iteration:8"], "preset=iterative"),
        (["algorithm.sppo.eta=1000"], "preset=iterative"),
        (["data.train_batch_size=20000", f"{ACTOR}.ppo_mini_batch_size=64"], "learning rate of 0"),
        (
            ["preset=paper", "data.train_batch_size=20000", f"{ACTOR}.optim.lr_warmup_steps=-1"]
            + [f"{ACTOR}.optim.lr_warmup_steps_ratio=0.1"],
            "learning rate of 0",
        ),
        (["preset=iterative", "data.train_batch_size=1408"], "updates_per_iteration"),
        (["preset=iterative", f"{ACTOR}.optim.lr_warmup_steps=5"], "lr_warmup_steps=0"),
        (["preset=iterative", f"{ACTOR}.optim.lr_scheduler_type=cosine"], "lr_scheduler_type=constant"),
        (["algorithm.sppo=fast"], "block of settings"),
    ],
)
def test_refused(overrides, named):
    with pytest.raises(ConfigError, match=r"^[^\n]+$") as refusal:
        check_sppo_config(composed(*overrides))
    assert named in str(refusal.value)


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["preset=paper"],
        ["preset=paper", "algorithm.sppo.pairs=best_worst"],
        ["preset=paper", "algorithm.sppo.preference=bradley_terry", "algorithm.sppo.tau=0.5"],
        ["preset=paper", "algorithm.sppo.score=reward", "algorithm.sppo.pairs=best_worst"],
        ["data.train_batch_size=20000", f"{ACTOR}.ppo_mini_batch_size=64", f"{ACTOR}.optim.lr_warmup_steps=0"],
        ["preset=iterative"],
        ["preset=iterative", "algorithm.sppo.score=reward", "algorithm.sppo.preference=binary"],
        ["algorithm.sppo.eta=3"],
        ["algorithm.sppo.baseline=mean"],
        ["preset=grpo"],
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
    with pytest.raises(ConfigError, match="override_config.attention_dropout=0"):
        check_sppo_config(composed(*overrides))
    overrides.append("+actor_rollout_ref.model.override_config.attention_dropout=0")
    check_sppo_config(composed(*overrides))


def test_a_broken_model_configuration_is_named(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="not a readable model configuration"):
        check_sppo_config(composed(f"actor_rollout_ref.model.path={tmp_path}"))


def test_a_stock_verl_configuration_without_our_block_takes_the_defaults():
    config = composed("~algorithm.sppo")
    assert read(SppoSettings, config.algorithm.get("sppo"), SECTION) == SppoSettings()


def test_presets_spell_out_every_option():
    for preset in ("verl", "paper", "iterative"):
        block = OmegaConf.to_container(composed(f"preset={preset}").algorithm.sppo)
        assert set(block) == set(SppoSettings.__dataclass_fields__)
    assert read(SppoSettings, composed("preset=verl").algorithm.sppo, SECTION) == SppoSettings()
