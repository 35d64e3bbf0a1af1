"""State beside a checkpoint comes back as it was, or is refused with the reason and a way out."""

import contextlib
import json
import re

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from recipes.core import state as state_module
from recipes.core.state import METRICS_FILE, load, load_metrics, resumed_folder, save, save_metrics, step_folder
from recipes.errors import CheckpointError, StateError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(st.dictionaries(st.text(), JSON, max_size=4), st.dictionaries(st.text(), JSON, max_size=2))
def test_what_was_saved_is_loaded(tmp_path_factory, state, identity):
    path = tmp_path_factory.mktemp("state") / "global_step_3" / "recipe.json"
    save(path, {"older": True})
    save(path, state, identity=identity)
    assert load(path, identity=identity) == state


def test_tuples_of_an_identity_are_lists_on_disk(tmp_path):
    save(tmp_path / "s", {}, identity={"bounds": (0.2, 0.8)})
    assert load(tmp_path / "s", identity={"bounds": (0.2, 0.8)}) == {}


@given(st.data())
def test_no_changed_byte_and_no_cut_gives_another_state(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("state") / "s"
    state = {"pool": ["a", "b"], "step": 3}
    save(path, state, identity={"seed": 1})
    whole = path.read_bytes()
    position = data.draw(st.integers(0, len(whole) - 1))
    changed = whole[:position] + data.draw(st.sampled_from([b"", b"\x00", b"9", b"\n"])) + whole[position + 1 :]
    for damaged in (changed, whole[:position]):
        path.write_bytes(damaged)
        try:
            found = load(path, identity={"seed": 1})
        except StateError:
            continue
        # White space in the header means nothing.
        assert found == state and json.loads(damaged.split(b"\n")[0]) == json.loads(whole.split(b"\n")[0])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({}, "is missing, so the checkpoint is not complete: resume from another checkpoint"),
        ({"format": 2}, "has format 2 and this version reads format 1: update this package, or resume from another"),
        ({"format": 0}, "has format 0 .*: finish the run with the version that wrote it, or resume from another"),
        ({"identity": {"base": "x", "seed": 1}}, r"another run \(base was 'x' and is 'y'\)"),
        ({"identity": {"seed": 1}}, r"another run \(base was None and is 'y'\)"),
        ({"identity": {"seed": 1, "base": "y", "more": 3}}, r"another run \(more was 3 and is None\)"),
    ],
)
def test_refusals_say_what_to_do(tmp_path, change, sentence):
    if change:
        save(tmp_path / "s", {}, **change)
    with pytest.raises(StateError, match=sentence) as caught:
        load(tmp_path / "s", identity={"seed": 1, "base": "y"})
    assert "start a new run" in str(caught.value) and isinstance(caught.value, CheckpointError)


def test_nan_is_refused_before_anything_is_written(tmp_path):
    save(tmp_path / "s", {"a": 1})
    with pytest.raises(ValueError):
        save(tmp_path / "s", {"a": float("nan")})
    assert load(tmp_path / "s") == {"a": 1}
    assert len((tmp_path / "s").read_text().splitlines()) == 2
    assert json.loads((tmp_path / "s").read_text().splitlines()[1]) == {"a": 1}


def test_folders_follow_the_resume_mode(tmp_path):
    trainer = {"default_local_dir": str(tmp_path), "resume_mode": "auto", "resume_from_path": None}
    config = OmegaConf.create({"trainer": trainer})
    assert resumed_folder(config, 4) == step_folder(config, 4) == tmp_path / "global_step_4"
    config.trainer.update(resume_mode="resume_path", resume_from_path="/other/global_step_4")
    assert str(resumed_folder(config, 4)) == "/other/global_step_4"
    assert step_folder(config, 5) == tmp_path / "global_step_5"


def test_a_checkpoint_has_the_numbers_of_its_step_and_nothing_else(tmp_path):
    metrics = {"actor/loss": numpy.float32(0.5), "actor/tensor": torch.tensor(2.0), "count": 3, "text": "no number"}
    save_metrics(tmp_path, metrics | {"several": torch.ones(2), "list": [1.0], "broken": float("nan")})
    assert load_metrics(tmp_path) == {"actor/loss": 0.5, "actor/tensor": 2.0, "count": 3}


@pytest.mark.parametrize("text", [None, "", "[", "3", '["a"]'])
def test_a_checkpoint_without_metrics_or_with_damaged_ones_knows_nothing(tmp_path, text):
    if text is not None:
        (tmp_path / METRICS_FILE).write_text(text)
    assert load_metrics(tmp_path) == {}


def run_with(folder, **changes):
    actor = {"optim": {"lr": 1e-6, "weight_decay": 0.01, "betas": [0.9, 0.999], "lr_warmup_steps": 5}}
    config = OmegaConf.create({"actor_rollout_ref": {"model": {"path": str(folder)}, "actor": actor}})
    for key, value in changes.items():
        OmegaConf.update(config, f"actor_rollout_ref.{key.replace('__', '.')}", value)
    return config


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({}, None),
        ({"actor__optim__lr_warmup_steps": 9}, None),
        ({"actor__optim__lr": 2e-6}, "actor_rollout_ref.actor.optim.lr"),
        ({"actor__optim__betas": [0.9, 0.95]}, "actor_rollout_ref.actor.optim.betas"),
        ({"model__path": "/another/model"}, "actor_rollout_ref.model.path"),
    ],
)
def test_what_a_checkpoint_brings_back_cannot_be_set_otherwise(tmp_path, changes, refused):
    """torch puts the learning rate back with the optimizer and with the schedule: another one would be ignored."""
    state_module.save_settings(tmp_path, run_with(tmp_path))
    changed = run_with(tmp_path, **changes)
    if refused is None:
        state_module.check_settings(tmp_path, changed)
        return
    with pytest.raises(StateError, match=f"^{re.escape(refused)} was "):
        state_module.check_settings(tmp_path, changed)


def test_a_second_policy_has_settings_of_its_own(tmp_path):
    one, other = ({"proposer": run_with(tmp_path, actor__optim__lr=lr)} for lr in (1e-6, 2e-6))
    state_module.save_settings(tmp_path, OmegaConf.create(one))
    with pytest.raises(StateError, match=r"^proposer\.actor_rollout_ref\.actor\.optim\.lr was"):
        state_module.check_settings(tmp_path, OmegaConf.create(other))


@pytest.mark.parametrize("enabled", [False, True])
def test_a_critic_that_is_off_has_no_say(tmp_path, enabled):
    one, other = (OmegaConf.create({"critic": {"enable": enabled, "optim": {"lr": lr}}}) for lr in (1e-5, 1e-6))
    state_module.save_settings(tmp_path, one)
    with pytest.raises(StateError, match="critic.optim.lr") if enabled else contextlib.nullcontext():
        state_module.check_settings(tmp_path, other)


def test_a_model_folder_may_move_and_an_older_checkpoint_says_nothing(tmp_path):
    state_module.check_settings(tmp_path, run_with("/any"))
    state_module.save_settings(tmp_path, run_with(tmp_path / "gone"))
    state_module.check_settings(tmp_path, run_with("/its/new/place"))


@pytest.mark.parametrize("text", ["", "[1", "3", "null"])
def test_damaged_settings_are_refused_with_their_file(tmp_path, text):
    (tmp_path / state_module.SETTINGS_FILE).write_text(text)
    with pytest.raises(StateError, match="settings.json is damaged"):
        state_module.check_settings(tmp_path, run_with(tmp_path))
