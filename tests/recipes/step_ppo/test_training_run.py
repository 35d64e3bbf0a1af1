"""What the offline trainings share: how their folders say what they were made with."""

import pytest

from recipes.step_ppo.pipeline.training_run import is_finished, mark_finished, resumed_checkpoint


def checkpoint(folder, number):
    made = folder / f"checkpoint-{number}"
    made.mkdir(parents=True)
    (made / "trainer_state.json").write_text("{}")
    return str(made)


def test_a_killed_training_goes_on_with_its_own_options_only(tmp_path):
    options = {"beta": 0.1, "data": ["p.parquet"]}
    assert resumed_checkpoint(str(tmp_path), {"beta": 0.9}, notes=True) is None
    # Nothing was saved under the first options, so others may start here.
    assert resumed_checkpoint(str(tmp_path), options, notes=True) is None
    newest = [checkpoint(tmp_path, number) for number in (9, 10)][-1]
    assert resumed_checkpoint(str(tmp_path), options, notes=False) == newest
    for _ in range(2):
        with pytest.raises(SystemExit, match=r"other options \(beta\)"):
            resumed_checkpoint(str(tmp_path), {**options, "beta": 0.5}, notes=True)
    assert resumed_checkpoint(str(tmp_path), options, notes=True) == newest


def test_a_finished_training_is_that_of_its_options(tmp_path):
    assert not is_finished(str(tmp_path), {"beta": 0.1})
    (tmp_path / "model.safetensors").touch()
    mark_finished(str(tmp_path), {"beta": 0.1}, {})
    assert is_finished(str(tmp_path), {"beta": 0.1})
    with pytest.raises(SystemExit, match="other options"):
        is_finished(str(tmp_path), {"beta": 0.5})


WEIGHTS = ("model.safetensors", "model-00001-of-00002.safetensors", "pytorch_model.bin", "adapter_model.bin")


@pytest.mark.parametrize("file", ["pytorch_model-00001-of-00002.bin", "adapter_model.safetensors", *WEIGHTS])
def test_a_training_is_finished_only_with_its_weights(tmp_path, file):
    """Under sharded state dicts transformers' `save_model` writes all but the weights, and says nothing."""
    checkpoint(tmp_path, 3)
    for name in ("config.json", "tokenizer.json", "training_args.bin", "checkpoint-3/model.safetensors"):
        (tmp_path / name).touch()
    with pytest.raises(SystemExit, match=r"holds no weights.*--fsdp_state_dict_type FULL_STATE_DICT"):
        mark_finished(str(tmp_path), {}, {})
    assert not is_finished(str(tmp_path), {})
    (tmp_path / file).touch()
    mark_finished(str(tmp_path), {}, {})
    assert is_finished(str(tmp_path), {})
