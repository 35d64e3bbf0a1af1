"""What a run would expose by default: no code of a model's repository, no tracker."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECIPES = ("sppo", "tandem", "serl", "pasodoble", "step_ppo")


def leaves(node, path=""):
    """Every value of a nested mapping with its dotted key."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from leaves(value, f"{path}.{key}".lstrip("."))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from leaves(value, f"{path}[{index}]")
    else:
        yield path, node


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_composed_config_trusts_nobody_and_logs_to_nobody(recipe, monkeypatch):
    """verl's own defaults included, for every model that the recipe loads."""
    from omegaconf import OmegaConf

    from recipes.launch.composition import compose_config

    monkeypatch.setenv("TOY_DIR", "/nowhere")
    config = compose_config(f"recipes.{recipe}.config", recipe, ["+platform=cpu", "scale=toy"])
    plain = OmegaConf.to_container(config, resolve=False)
    trusted = {key: value for key, value in leaves(plain) if "trust_remote_code" in key}
    assert trusted
    for key, value in trusted.items():
        # A reference to another of these keys is as good as that one.
        assert value in (False, None) or "trust_remote_code" in str(value), (key, value)
    assert set(config.trainer.logger) <= {"console", "file"}
