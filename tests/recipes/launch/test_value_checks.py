"""Values of the wrong kind are refused with their key, before anything divides by them."""

import pytest
from omegaconf import OmegaConf

from recipes.errors import ConfigError
from recipes.launch.checks import check_kinds
from recipes.launch.composition import verl_defaults

ACTOR, ROLLOUT, MODEL = (f"actor_rollout_ref.{name}" for name in ("actor", "rollout", "model"))


def of_verl(**values):
    """verl's own config with these values; a value of `...` takes the key out."""
    tree = verl_defaults().copy()
    OmegaConf.set_readonly(tree, False)
    OmegaConf.set_struct(tree, False)
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
        {"data.seed": "${data.train_batch_size}", f"{ACTOR}.ppo_micro_batch_size_per_gpu": None},
    ],
)
def test_values_of_the_kind_that_verl_has_pass(values):
    check_kinds(of_verl(**values), verl_defaults())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (f"{ACTOR}.optim.lr", "abc"),
        (f"{ACTOR}.optim.lr", float("nan")),
        (f"{ACTOR}.optim.lr", "${trainer.project_name}"),
        (f"{ACTOR}.fsdp_config.param_offload", "false"),
        ("critic.ulysses_sequence_parallel_size", "two"),
        ("trainer.save_freq", True),
        ("trainer.val_before_train", "no"),
        ("data.shuffle", ["a"]),
        ("trainer.default_local_dir", float("inf")),
        ("trainer.project_name", 2025),
        ("data.train_files", 7),
        (f"{MODEL}.override_config", "sdpa"),
        ("critic.model", 3),
        ("data", None),
        (f"{ROLLOUT}.val_kwargs.n", ...),
        ("trainer.n_gpus_per_node", 0),
        ("trainer.nnodes", 1.5),
        (f"{ROLLOUT}.n", 0),
        (f"{ACTOR}.ppo_micro_batch_size_per_gpu", 0),
    ],
)
def test_a_value_that_no_run_can_have_is_named(key, value):
    with pytest.raises(ConfigError) as refused:
        check_kinds(of_verl(**{key: value}), verl_defaults())
    assert refused.value.key == key
