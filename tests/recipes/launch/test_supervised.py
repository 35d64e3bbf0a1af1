"""What the supervised start refuses before it trains."""

import sys

import pyarrow
import pyarrow.parquet
import pytest

from recipes.errors import ConfigError, DataError, MissingFileError
from recipes.launch import checks, supervised


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (folder / name).write_text("{}")
    return folder


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data.parquet"
    messages = [[{"role": "user", "content": "1 + 1"}, {"role": "assistant", "content": "2"}]] * 8
    pyarrow.parquet.write_table(pyarrow.table({"messages": messages}), path)
    return path


@pytest.fixture
def settings(model, data, tmp_path):
    """Overrides of a run that is accepted."""
    return [
        f"model.path={model}",
        f"data.train_files={data}",
        "data.train_batch_size=8",
        f"trainer.default_local_dir={tmp_path / 'out'}",
    ]


def checked(*overrides: str):
    config = supervised.compose(overrides, "cpu")
    supervised.check(config)
    return config


def test_a_good_run_passes(settings):
    config = checked(*settings)
    assert config.model.override_config.attn_implementation == "sdpa" and config.engine.strategy == "fsdp2"
    on_accelerator = supervised.compose(settings, "accelerator")
    assert (on_accelerator.engine.strategy, on_accelerator.engine.dtype) == ("fsdp2", "bfloat16")


def test_another_engine_keeps_its_strategy(settings):
    for overrides, found in (("engine=veomni", "veomni"), ("engine.strategy=fsdp", "fsdp")):
        assert supervised.compose([*settings, overrides], "accelerator").engine.strategy == found


def test_what_is_typed_wins_over_the_cpu_layer(settings):
    config = checked(*settings, "engine.dtype=bfloat16", "data.num_workers=2")
    assert (config.engine.dtype, config.data.num_workers) == ("bfloat16", 2)


def test_without_flash_attention_an_accelerator_takes_sdpa(settings, monkeypatch):
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    plain, typed = settings, [*settings, "+model.override_config.attn_implementation=eager"]
    for overrides, found in ((plain, "sdpa"), (typed, "eager")):
        config = supervised.compose(overrides, "accelerator")
        checks.fall_back_to_sdpa(config, "accelerator", ("model",))
        assert config.model.override_config.attn_implementation == found


@pytest.mark.parametrize(
    ("override", "error", "key"),
    [
        ("model.path=/no/such/model", MissingFileError, None),
        ("data.train_files=/no/such/file.parquet", MissingFileError, None),
        ("data.val_files=/no/such/file.parquet", MissingFileError, None),
        ("data.messages_key=turns", DataError, None),
        ("data.train_batch_size=9", ConfigError, "data.train_batch_size"),
        ("data.train_max_samples=4", ConfigError, "data.train_batch_size"),
        ("data.train_batchsize=4", ConfigError, ""),
    ],
)
def test_bad_input_is_refused(settings, override, error, key):
    with pytest.raises(error) as refused:
        checked(*settings, override)
    assert getattr(refused.value, "key", None) == key


def test_a_file_that_is_no_parquet_is_refused_unless_a_custom_dataset_reads_it(settings, tmp_path):
    lines = tmp_path / "data.jsonl"
    lines.write_text('{"messages": []}')
    for key in ("train_files", "val_files"):
        with pytest.raises(DataError):
            checked(*settings, f"data.{key}={lines}")
    checked(*settings, f"data.train_files={lines}", "data.custom_cls.path=pkg://recipes.step_ppo.sft_dataset")


def test_other_columns_are_a_custom_dataset_s_affair(settings):
    checked(*settings, "data.messages_key=turns", "data.custom_cls.path=pkg://recipes.step_ppo.sft_dataset")


def test_a_refusal_is_one_sentence_of_the_first_rank(settings, monkeypatch, capsys):
    overrides = [*settings, "data.train_batch_size=9", "trainer.device=cpu"]
    monkeypatch.setattr(supervised.cluster, "set_environment", lambda device: None)
    monkeypatch.setenv("RANK", "1")
    assert supervised.main(overrides) == supervised.REFUSED and capsys.readouterr().err == ""
    monkeypatch.setenv("RANK", "0")
    assert supervised.main(overrides) == supervised.REFUSED
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("sft: data.train_files has 8 records")


def test_ulysses_on_sdpa_is_refused(settings, monkeypatch):
    monkeypatch.setattr(supervised.cluster, "set_environment", lambda device: None)
    monkeypatch.setattr(supervised, "_train", lambda config, device: None)
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    overrides = [*settings, "trainer.device=cuda", "trainer.logger=console"]
    assert supervised.main(overrides) == 0
    assert supervised.main([*overrides, "engine.ulysses_sequence_parallel_size=2"]) == supervised.REFUSED
