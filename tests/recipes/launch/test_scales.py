"""What every scale has in common."""

from importlib import import_module
from pathlib import Path

import pytest
from omegaconf import open_dict

ROOT = Path(__file__).parents[3]
SCALES = [(path.parts[-4], path.stem) for path in sorted((ROOT / "recipes").glob("*/config/scale/*.yaml"))]


@pytest.mark.parametrize(("name", "scale"), SCALES)
def test_every_scale_trains_with_the_engine_that_is_tested(name, scale):
    """FSDP2 is what the tests run; verl's default is FSDP1."""
    from recipes.launch.composition import compose_config

    recipe = import_module(f"recipes.{name}.main").RECIPE
    config = compose_config(recipe.config_module, recipe.config_name, [f"scale={scale}"])
    group = config.actor_rollout_ref
    assert {group.actor.strategy, group.ref.strategy} == {"fsdp2"}
    assert not config.critic.enable or config.critic.strategy == "fsdp2"


@pytest.mark.parametrize("name", sorted({name for name, _ in SCALES}))
def test_one_gpu_trains_adapters_on_a_base_that_the_engine_reads_itself(name):
    from recipes.launch.adapter_checks import adapter_rank, check_adapters
    from recipes.launch.composition import compose_config

    recipe = import_module(f"recipes.{name}.main").RECIPE
    config = compose_config(recipe.config_module, recipe.config_name, ["scale=qwen3_4b_lora_1gpu"])
    with open_dict(config):
        config.pop("proposer", None)  # an overlay until the recipe writes it out
    check_adapters(config)
    assert adapter_rank(config) == 32 and config.actor_rollout_ref.rollout.load_format != "dummy"
    assert config.trainer.nnodes * config.trainer.n_gpus_per_node == 1
    if name == "step_ppo":
        assert config.critic.model.lora_rank == 32


def test_every_launcher_that_shards_with_accelerate_writes_its_model():
    """Under sharded state dicts transformers' `save_model` writes nothing, and the stage would count as finished."""
    scripts = {
        path.name: path.read_text()
        for path in sorted((ROOT / "recipes").glob("*/*.sh"))
        if "--use_fsdp" in path.read_text()
    }
    assert scripts
    assert all("--fsdp_state_dict_type FULL_STATE_DICT" in text for text in scripts.values()), scripts.keys()
