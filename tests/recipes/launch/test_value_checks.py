"""Values of the wrong kind: one sentence with the key, before anything divides by them."""

import pytest
from omegaconf import OmegaConf

from recipes.errors import ConfigError
from recipes.launch.composition import verl_defaults
from recipes.launch.value_checks import check_kinds, check_values


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
    check_values(config(**{"critic.fsdp.fsdp_size": -1, "critic.fsdp.mixed_precision.param_dtype": 16}))


PRECISIONS = "'fp32', 'bf16', 'fp16', 'float32', 'bfloat16', 'float16', '32', '16', 32 or 16"
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
        ("trainer.total_epochs", 1.5, "must be a valid integer, found 1.5"),
        ("trainer.max_actor_ckpt_to_keep", "all", "must be a valid integer, found 'all'"),
        ("trainer.total_training_steps", 0, "must be greater than or equal to 1, found 0"),
        (f"{ROLLOUT}.dtype", "fp8", "must be 'auto', 'half', 'float16', 'bfloat16', 'float' or 'float32', found 'fp8'"),
        (f"{ACTOR}.fsdp_config.model_dtype", "fp8", f"must be {PRECISIONS}, found 'fp8'"),
        (f"{ACTOR}.fsdp_config.mixed_precision", "bf16", "must be a valid dictionary, found 'bf16'"),
        ("critic.fsdp.mixed_precision", {"param_dtype": "fp8"}, f".param_dtype must be {PRECISIONS}, found 'fp8'"),
        ("critic.fsdp.fsdp_size", 0, ": must be -1 for all devices, or at least 1, found 0"),
    ],
)
def test_a_value_that_no_run_can_have_is_named_with_what_it_must_be(key, value, told):
    with pytest.raises(ConfigError) as refused:
        check_values(config(**{key: value}))
    assert str(refused.value).removeprefix(key).strip() == told


def of_verl(**values):
    """verl's own config with these values; a value of `...` takes the key out."""
    tree = OmegaConf.create(OmegaConf.to_container(verl_defaults(), resolve=False))
    for key, value in values.items():
        node, _, leaf = key.rpartition(".")
        if value is ...:
            OmegaConf.select(tree, node).pop(leaf) if node else tree.pop(leaf)
        else:
            OmegaConf.update(tree, key, value, merge=False, force_add=True)
    return tree


@pytest.mark.parametrize(
    "values",
    [
        {},
        {f"{ACTOR}.optim.lr": 1},
        {f"{ACTOR}.fsdp_config.model_dtype": 16},
        {"data.train_files": ["a.parquet", "b.parquet"], "trainer.logger": "console"},
        {f"{MODEL}.target_modules": ["q_proj", "v_proj"]},
        {f"{ROLLOUT}.max_num_seqs": None, "trainer.resume_from_path": "a/global_step_1"},
        {"ray_kwargs.ray_init.num_cpus": ..., f"{MODEL}.override_config.rope_theta": "what the model reads"},
        {f"{ROLLOUT}.engine_kwargs.vllm": {"seed": 3}},
        {"data.seed": "${data.train_batch_size}"},
        {"proposer": {"actor_rollout_ref": {"actor": {"optim": {"lr": 1e-6}}}}},
    ],
)
def test_values_of_the_kind_that_verl_has_pass(values):
    check_kinds(of_verl(**values), verl_defaults())


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        (f"{ACTOR}.optim.lr", "abc", "must be a valid number, found 'abc'"),
        (f"{ACTOR}.optim.lr", float("nan"), "must be a finite number, found nan"),
        (f"{ACTOR}.optim.lr", "${trainer.project_name}", "must be a valid number, found 'verl_examples'"),
        ("critic.ulysses_sequence_parallel_size", "two", "must be a valid number, found 'two'"),
        ("trainer.save_freq", True, "must be a valid number, found True"),
        ("trainer.val_before_train", "no", "must be a valid boolean, found 'no'"),
        ("data.shuffle", ["a"], "must be a valid boolean, found ['a']"),
        ("trainer.default_local_dir", float("inf"), "must be a valid string, found inf"),
        ("data.train_files", 7, "must be a valid list, found 7"),
        (f"{MODEL}.override_config", "sdpa", "must be a valid dictionary, found 'sdpa'"),
        ("critic.model", 3, "must be a block of settings, found 3"),
        ("data", None, "must be a block of settings, found None"),
        (f"{ROLLOUT}.val_kwargs.n", ..., "was taken out, and verl reads it"),
        ("proposer.actor_rollout_ref.actor.optim.lr", "abc", "must be a valid number, found 'abc'"),
        ("proposer", "abc", "must be a block of settings, found 'abc'"),
    ],
)
def test_a_value_of_another_kind_than_verls_is_named(key, value, told):
    with pytest.raises(ConfigError) as refused:
        check_kinds(of_verl(**{key: value}), verl_defaults())
    assert str(refused.value).startswith(f"{key} {told}")


def test_a_whole_block_that_was_taken_out_is_named_by_one_of_its_keys():
    with pytest.raises(ConfigError, match=r"^trainer\.\w+ was taken out"):
        check_kinds(of_verl(trainer=...), verl_defaults())
