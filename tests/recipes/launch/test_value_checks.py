"""Values of the wrong kind: one sentence with the key, before anything divides by them."""

import pytest
from omegaconf import OmegaConf

from recipes.errors import ConfigError
from recipes.launch.value_checks import check_values


def config(**values):
    tree = OmegaConf.create(
        {
            "trainer": {"nnodes": 1, "n_gpus_per_node": 2, "project_name": "p", "experiment_name": "e"},
            "data": {"train_batch_size": 16, "max_prompt_length": 1024, "max_response_length": 3000},
            "actor_rollout_ref": {
                "model": {"path": "/m", "lora_rank": 0, "lora_alpha": 16},
                "actor": {"ppo_mini_batch_size": 8, "ppo_epochs": 1, "fsdp_config": {"param_offload": True}},
                "rollout": {"n": 8, "temperature": 1, "gpu_memory_utilization": 0.65, "max_model_len": None}
                | {"tensor_model_parallel_size": 1, "val_kwargs": {"n": 4}},
            },
        }
    )
    for key, value in values.items():
        OmegaConf.update(tree, key, value, force_add=True)
    return tree


def test_ordinary_values_pass():
    check_values(config())
    check_values(config(**{"actor_rollout_ref.rollout.gpu_memory_utilization": 1}))


ACTOR, ROLLOUT, MODEL = (f"actor_rollout_ref.{name}" for name in ("actor", "rollout", "model"))


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("trainer.nnodes", 0, "must be greater than or equal to 1, found 0"),
        ("trainer.n_gpus_per_node", -1, "must be greater than or equal to 1, found -1"),
        ("trainer.n_gpus_per_node", 1.5, "must be a valid integer, found 1.5"),
        ("trainer.n_gpus_per_node", "all", "must be a valid integer, found 'all'"),
        ("trainer.project_name", 2025, "must be a valid string, found 2025"),
        ("trainer.experiment_name", ["a"], "must be a valid string, found ['a']"),
        ("trainer.experiment_name", None, "must be a valid string, found None"),
        ("data.train_batch_size", None, "must be a valid integer, found None"),
        ("data.max_response_length", 0, "must be greater than or equal to 1, found 0"),
        (f"{MODEL}.path", 4, "must be a valid string, found 4"),
        (f"{MODEL}.lora_rank", "abc", "must be a valid integer, found 'abc'"),
        (f"{MODEL}.lora_rank", 1.5, "must be a valid integer, found 1.5"),
        (f"{MODEL}.lora_alpha", "abc", "must be a valid number, found 'abc'"),
        (f"{ACTOR}.ppo_mini_batch_size", 0, "must be greater than or equal to 1, found 0"),
        (f"{ACTOR}.ppo_max_token_len_per_gpu", 1e4, "must be a valid integer, found 10000.0"),
        (f"{ACTOR}.fsdp_config.param_offload", "maybe", "must be a valid boolean, found 'maybe'"),
        (f"{ROLLOUT}.n", 0, "must be greater than or equal to 1, found 0"),
        (f"{ROLLOUT}.tensor_model_parallel_size", 0, "must be greater than or equal to 1, found 0"),
        (f"{ROLLOUT}.gpu_memory_utilization", 1.5, "must be less than or equal to 1, found 1.5"),
        (f"{ROLLOUT}.gpu_memory_utilization", "abc", "must be a valid number, found 'abc'"),
        (f"{ROLLOUT}.val_kwargs.n", None, "must be a valid integer, found None"),
        ("proposer.actor_rollout_ref.rollout.n", 0, "must be greater than or equal to 1, found 0"),
    ],
)
def test_a_value_that_no_run_can_have_is_named_with_what_it_must_be(key, value, told):
    with pytest.raises(ConfigError) as refused:
        check_values(config(**{key: value}))
    assert str(refused.value) == f"{key} {told}"
