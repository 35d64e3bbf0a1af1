"""What every scale has in common."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCALES = [(path.parts[-4], path.stem) for path in sorted((ROOT / "recipes").glob("*/config/scale/*.yaml"))]


@pytest.mark.parametrize(("name", "scale"), SCALES)
def test_every_scale_trains_with_the_engine_that_is_tested(name, scale, composed):
    """FSDP2 is what the tests run; verl's default is FSDP1."""
    config = composed(name, f"scale={scale}")
    group = config.actor_rollout_ref
    assert {group.actor.strategy, group.ref.strategy} == {"fsdp2"}
    assert not config.critic.enable or config.critic.strategy == "fsdp2"
    # wandb is for who asks: without a key it refuses to start.
    assert set(config.trainer.logger) <= {"console", "file"}


def test_every_launcher_that_shards_with_accelerate_writes_its_model():
    """Under sharded state dicts transformers' `save_model` writes nothing, and the stage would count as finished."""
    scripts = {
        path.name: path.read_text()
        for path in sorted((ROOT / "recipes").glob("*/*.sh"))
        if "--use_fsdp" in path.read_text()
    }
    assert scripts
    assert all("--fsdp_state_dict_type FULL_STATE_DICT" in text for text in scripts.values()), scripts.keys()
