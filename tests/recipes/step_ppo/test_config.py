"""Every shipped configuration composes and passes the guards; contradictions are refused in one sentence."""

import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from recipes.errors import ConfigError
from recipes.step_ppo.settings import StepPPOSettings

pytest.importorskip("verl")

from recipes.launch.composition import compose_config  # noqa: E402
from recipes.step_ppo.guards import check_step_ppo_config  # noqa: E402

CONFIG = Path(__file__).parents[3] / "recipes" / "step_ppo" / "config"
SCALES = sorted(path.stem for path in (CONFIG / "scale").glob("*.yaml"))


def composed(*overrides):
    return compose_config("recipes.step_ppo.config", "step_ppo", overrides)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("preset", ["prm", "outcome"])
def test_every_configuration_is_valid(scale, preset):
    config = composed(f"scale={scale}", f"preset={preset}")
    check_step_ppo_config(config)
    settings = StepPPOSettings.from_mapping(OmegaConf.to_container(config.step_ppo, resolve=True))
    assert settings.reward.needs_prm == (preset == "prm") == config.reward.reward_model.enable
    assert config.algorithm.lam == 0.95 and config.algorithm.kl_ctrl.kl_coef == 0.1 and config.algorithm.gamma == 1.0


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("estimator", ["pure_token", "pure_rloo"])
def test_pure_needs_no_critic_and_several_responses(scale, estimator):
    config = composed(f"scale={scale}", "preset=pure", f"algorithm.adv_estimator={estimator}")
    check_step_ppo_config(config)
    settings = StepPPOSettings.from_mapping(OmegaConf.to_container(config.step_ppo, resolve=True))
    assert (settings.reward.mode, settings.verifiable.weight, settings.verifiable.share) == ("softmin", 1.0, 0.1)
    rollout = config.actor_rollout_ref.rollout
    assert (rollout.n, rollout.temperature, config.algorithm.kl_ctrl.kl_coef) == (4, 0.5, 1e-3)


def test_the_published_numbers():
    config = composed("scale=logiqa2_llama2_7b")
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    assert config.data.train_batch_size == actor.ppo_mini_batch_size == config.critic.ppo_mini_batch_size == 32
    assert (actor.ppo_epochs, actor.clip_ratio, config.critic.cliprange_value, rollout.n) == (1, 0.2, 0.2, 1)
    assert (rollout.temperature, rollout.top_p, rollout.top_k) == (1.0, 0.8, 50)
    # no dual clip: an advantage below 0 is not bounded by a ratio of 3
    assert actor.clip_ratio_c == 1e9
    for optim in (actor.optim, config.critic.optim):
        assert (optim.lr, optim.weight_decay, optim.lr_warmup_steps_ratio, optim.clip_grad) == (1e-6, 0.01, 0.1, 1.0)
        assert list(optim.betas) == [0.9, 0.95] and optim.override_optimizer_config == {"eps": 1e-6}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["critic.enable=false"], "GAE needs a critic"),
        (["critic.enable=null"], "GAE needs a critic"),
        (["algorithm.adv_estimator=grpo"], "set algorithm.adv_estimator=gae or pure_token or pure_rloo, found grpo"),
        (["preset=pure", "actor_rollout_ref.rollout.n=1"], "rollout.n=1: pure_token compares"),
        (["preset=pure", "critic.enable=true"], "pure_token has no critic: set critic.enable=false"),
        (["preset=pure", "step_ppo.reward.mode=outcome"], "apart from the step rewards"),
        (["preset=pure", "algorithm.adv_estimator=grpo"], "belongs to PURE's estimators"),
        (["step_ppo.verifiable.weight=1"], "belongs to PURE's estimators"),
        (["preset=pure", "step_ppo.verifiable.share=1.5"], "step_ppo.verifiable.share"),
        (["trainer.v1.trainer_mode=sync"], "trainer_mode"),
        (["reward.reward_manager.name=naive"], "reward_manager"),
        (["actor_rollout_ref.rollout.agent.default_agent_loop=single_turn_agent"], "default_agent_loop"),
        (["reward.custom_reward_function.path=null"], "bypasses the reward manager"),
        (["reward.reward_model.enable=false"], "need a PRM"),
        (["reward.reward_model.enable_resource_pool=false"], "colocated"),
        (["reward.reward_model.rollout.max_model_len=100"], "max_model_len=100"),
        (["reward.reward_model.model_path=null"], "model_path is null"),
        (["preset=outcome", "reward.reward_model.enable=true"], "asks no PRM"),
        (["step_ppo.prm.url=http://x"], "two PRMs"),
        (["step_ppo.prm.url=http://x", "reward.reward_model.enable=false"], "step_ppo.prm.model"),
        (["step_ppo.reward.mode=max"], "step_ppo.reward.mode must be"),
        (["step_ppo.reward.clip=0"], "clip must be greater than 0"),
        (["+step_ppo.reward.weight=1"], "unknown key step_ppo.reward.weight"),
        (["+step_ppo.mode=sum"], "unknown key step_ppo.mode"),
        (["step_ppo.step_style=tree"], "step_style"),
        (["step_ppo.failure_budget.share=1.0"], "below 1"),
        (["step_ppo.length_alarm.factor=0.5"], "factor must be greater than 1"),
    ],
)
def test_refusals(overrides, message):
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        check_step_ppo_config(composed("scale=toy", *overrides))


def folder(path, **config):
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


def test_heads_are_looked_at(tmp_path):
    four = {"architectures": ["Qwen3ForTokenClassification"], "id2label": {str(i): str(i) for i in range(4)}}
    prm = folder(tmp_path / "prm", **four)
    language = folder(tmp_path / "lm", architectures=["Qwen3ForCausalLM"])
    backbone = folder(tmp_path / "backbone", architectures=["Qwen3ForTokenClassification"], id2label={"0": "0"})
    base = ["scale=toy", f"reward.reward_model.model_path={prm}", f"critic.model.path={backbone}"]
    check_step_ppo_config(composed(*base))
    for override, message in [
        (f"critic.model.path={prm}", "export-backbone"),
        (f"reward.reward_model.model_path={language}", "not a PRM"),
        ("step_ppo.prm.classes=[3,4]", "has 4 classes"),
    ]:
        with pytest.raises(ConfigError, match=message):
            check_step_ppo_config(composed(*base, override))
