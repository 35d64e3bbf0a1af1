"""verl's own entry point finds SPPO with nothing but the package installed."""

import pytest
from omegaconf import OmegaConf

from recipes.launch.composition import compose_config, flatten, verl_defaults

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(600)]
CPU = {
    "VERL_PLATFORM": "cpu",
    "VERL_ENGINE_DEVICE": "cuda",
    "VERL_DUETS_CPU": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}


def test_main_ppo_with_our_names(start, toy_world, monkeypatch):
    """Everything but the names sppo is what a stock CPU run would set; the two names come from the plug-in."""
    monkeypatch.setenv("TOY_DIR", str(toy_world))
    small = [
        "scale=toy",
        "+platform=cpu",
        "data.train_batch_size=32",
        "actor_rollout_ref.actor.ppo_mini_batch_size=16",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=32",
    ]
    config = compose_config("recipes.sppo.config", "sppo", small)
    defaults = flatten(verl_defaults())
    overrides = []
    for key, value in flatten(config).items():
        if defaults.get(key) != value and not key.startswith(("algorithm.sppo.", "trainer.v1.trainer_mode")):
            resolved = OmegaConf.select(config, key)
            overrides.append(
                f"++{key}={OmegaConf.to_container(resolved) if OmegaConf.is_config(resolved) else resolved}"
            )
    run = start(
        "verl.trainer.main_ppo",
        *overrides,
        "algorithm.adv_estimator=sppo",
        "actor_rollout_ref.actor.policy_loss.loss_mode=sppo",
        "trainer.total_training_steps=2",
        "trainer.save_freq=-1",
        "trainer.test_freq=-1",
        "trainer.val_before_train=false",
        "ray_kwargs.ray_init.num_cpus=8",
        "++ray_kwargs.ray_init.num_gpus=1",
        "++ray_kwargs.ray_init.address=local",
        environment=CPU,
    )
    assert run.wait() == 0, run.log[-6000:]
    metrics = run.metrics()
    assert sorted(metrics) == [1, 2]
    for step in metrics.values():
        assert step["training/rollout_probs_diff_mean"] < 1e-5 and step["actor/grad_norm"] > 0
        # With the soft baseline the mean target is negative, and the targets differ.
        assert -0.5 < step["actor/sppo_target_mean"] < 0 < step["actor/sppo_target_std"]
    assert metrics[1]["actor/sppo_log_ratio_std"] < metrics[2]["actor/sppo_log_ratio_std"], "the policy has moved"
