"""Contradictions are refused with the key to change; heads of models are looked at."""

import json

import pytest

from recipes.errors import ConfigError
from recipes.step_ppo.guards import check_step_ppo_config


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["critic.enable=false"], "critic.enable"),
        (["algorithm.adv_estimator=grpo"], "algorithm.adv_estimator"),
        (["trainer.v1.trainer_mode=sync"], "trainer.v1.trainer_mode"),
        (["reward.reward_manager.name=naive"], "reward.reward_manager.name"),
        (
            ["actor_rollout_ref.rollout.agent.default_agent_loop=single_turn_agent"],
            "actor_rollout_ref.rollout.agent.default_agent_loop",
        ),
        (["reward.custom_reward_function.path=null"], "reward.custom_reward_function.path"),
        (["reward.reward_model.enable=false"], "reward.reward_model.enable"),
        (["reward.reward_model.enable_resource_pool=false"], "reward.reward_model.enable_resource_pool"),
        (["reward.reward_model.rollout.max_model_len=100"], "reward.reward_model.rollout.max_model_len"),
        (["reward.reward_model.model_path=null"], "reward.reward_model.model_path"),
        (["preset=outcome", "reward.reward_model.enable=true"], "reward.reward_model.enable"),
        (["preset=centred", "algorithm.adv_estimator=gae"], "algorithm.adv_estimator"),
        (["preset=centred", "critic.enable=true"], "critic.enable"),
        (["preset=centred", "step_ppo.reward.mode=outcome"], "step_ppo.reward.mode"),
        (["preset=centred", "actor_rollout_ref.rollout.n=1"], "actor_rollout_ref.rollout.n"),
        (["step_ppo.prm.url=http://x"], "reward.reward_model.enable"),
        (["step_ppo.prm.url=http://x", "reward.reward_model.enable=false"], "step_ppo.prm.model"),
        (["step_ppo.prm.classes=[2,2]"], "step_ppo.prm.classes"),
        (["step_ppo.reward.clip=0"], "step_ppo.reward.clip"),
        (["+step_ppo.reward.weight=1"], "step_ppo.reward.weight"),
    ],
)
def test_refusals(overrides, key, composed):
    with pytest.raises(ConfigError) as refusal:
        check_step_ppo_config(composed("step_ppo", "scale=toy", *overrides))
    assert refusal.value.key == key


def folder(path, **config):
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


def test_heads_are_looked_at(tmp_path, composed):
    four = {"architectures": ["Qwen3ForTokenClassification"], "id2label": {str(i): str(i) for i in range(4)}}
    prm = folder(tmp_path / "prm", **four)
    language = folder(tmp_path / "lm", architectures=["Qwen3ForCausalLM"])
    backbone = folder(tmp_path / "backbone", architectures=["Qwen3ForTokenClassification"], id2label={"0": "0"})
    base = ["scale=toy", f"reward.reward_model.model_path={prm}", f"critic.model.path={backbone}"]
    check_step_ppo_config(composed("step_ppo", *base))
    for override in (
        f"critic.model.path={prm}",
        f"reward.reward_model.model_path={language}",
        "step_ppo.prm.classes=[3,4]",
    ):
        with pytest.raises(ConfigError) as refusal:
            check_step_ppo_config(composed("step_ppo", *base, override))
        assert refusal.value.key == override.partition("=")[0]
