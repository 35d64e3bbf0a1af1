"""Hydra composition on verl's own ppo_trainer, and what a wrong override is told."""

from importlib import import_module
from pathlib import Path

import pytest

from recipes.errors import ConfigError
from recipes.launch.composition import compose_config, difference, flatten, refuse_unknown_additions, verl_defaults

SPPO = ("recipes.sppo.config", "sppo")


@pytest.fixture(scope="module")
def defaults():
    return verl_defaults()


def test_a_recipe_holds_only_differences(defaults):
    config = compose_config(*SPPO, ["scale=toy"])
    changed = difference(config, defaults)
    assert changed["algorithm.adv_estimator"] == ("gae", "sppo")
    assert changed["algorithm.sppo.eta"] == (None, 1.0)
    assert set(flatten(defaults)) <= set(flatten(config)) | {"actor_rollout_ref.rollout.engine_kwargs.vllm"}


def test_the_command_line_wins_over_the_platform_layer():
    config = compose_config(*SPPO, ["scale=toy", "+platform=cpu", "actor_rollout_ref.rollout.dtype=bfloat16"])
    assert config.trainer.device == "cpu"
    assert config.actor_rollout_ref.rollout.dtype == "bfloat16"
    assert config.actor_rollout_ref.model.override_config.attn_implementation == "sdpa"


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("actor_rollout_ref.actor.optim.learning_rate=1", "actor_rollout_ref.actor.optim.learning_rate"),
        ("trainer.total_trainig_steps=3", "trainer.total_trainig_steps"),
        ("scale=huge", ""),
        ("data.train_batch_size=[1", "data.train_batch_size"),
        ("nonsense", "nonsense"),
        ("actor_rollout_ref.rollout.engine_kwargs=[1]", ""),
    ],
)
def test_a_wrong_override_is_one_sentence_with_the_nearest_key(override, key):
    with pytest.raises(ConfigError) as refused:
        compose_config(*SPPO, ["scale=toy", override])
    assert refused.value.key == key and "\n" not in str(refused.value)
    assert ("trainig" in override) == ("did you mean trainer.total_training_steps?" in str(refused.value))
    assert ("huge" in override) == str(refused.value).endswith("smollm2_135m toy")


@pytest.mark.parametrize(
    "override",
    [
        "+actor_rollout_ref.actor.sppo_eta=1.0",
        "+trainer.total_step=3",
        "+algorithm.spo.eta=1",
        "++data.train_batchsize=3",
        "+actor_rollout_ref.rollout.val_kwargs.temprature=0",
    ],
)
def test_an_added_key_nobody_reads_is_refused(override, defaults):
    with pytest.raises(ConfigError) as refused:
        refuse_unknown_additions([override], defaults, ["algorithm.sppo"])
    assert refused.value.key == override.lstrip("+").partition("=")[0]


@pytest.mark.parametrize(
    "override",
    [
        "+algorithm.sppo.eta=2",
        "+actor_rollout_ref.model.override_config.attn_implementation=eager",
        "+actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_memory_bytes=1",
        "+ray_kwargs.ray_init.address=auto",
        "+actor_rollout_ref.rollout.enable_sleep_mode=false",
        "++trainer.total_epochs=3",
        "~trainer.total_epochs",
        "+platform=cpu",
    ],
)
def test_additions_that_somebody_reads_pass(override, defaults):
    refuse_unknown_additions([override], defaults, ["algorithm.sppo"])


@pytest.mark.parametrize("name", ["sppo", "tandem", "serl"])
def test_every_published_name_stands_in_the_reference(name):
    page = (Path(__file__).parents[3] / "recipes" / name / "REFERENCE.md").read_text()
    rows = [line for line in page.split("\n") if line.startswith("| ")]
    published = import_module(f"recipes.{name}.main").RECIPE.published
    missing = [
        name
        for name, target in published.items()
        if not any(name in row and target.partition("=")[0] in row for row in rows)
    ]
    assert published and missing == []
