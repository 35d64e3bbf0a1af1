"""What is refused about files before Ray starts."""

import importlib
import json
import re
import shlex
import shutil
from pathlib import Path

import pandas as pd
import pytest
from omegaconf import OmegaConf
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from recipes.errors import ConfigError, DataError, MissingFileError
from recipes.launch import preflight, prompt_checks

ROW = {
    "data_source": "toy",
    "prompt": [{"role": "user", "content": "1 + 1?"}],
    "reward_model": {"style": "rule", "ground_truth": "2"},
}


def parquet(path, rows):
    pd.DataFrame(rows).to_parquet(path)
    return str(path)


@pytest.mark.parametrize("recipe", ["sppo", "tandem", "serl", "pasodoble", "step_ppo"])
def test_a_missing_world_is_refused_with_the_command_that_makes_it(recipe):
    """The command is one that a reader can type: its program exists, and it writes where the scale reads."""
    prepare = importlib.import_module(f"recipes.{recipe}.main").RECIPE.prepare
    for part, command in prepare.items():
        name = f"/nowhere/outputs/{part}/train.parquet"
        with pytest.raises(MissingFileError, match=re.escape(f"{command} makes it")):
            preflight.check_data([name], "data.train_files", prompt_key="prompt", prepare=prepare)
        programs = [word for word in shlex.split(command) if word == "-m" or word.endswith((".py", ".sh"))]
        assert programs == ["-m"] or (Path(__file__).parents[3] / programs[0]).is_file()
    scales = Path(__file__).parents[3].glob(f"recipes/{recipe}/config/scale/*.yaml")
    paths = re.findall(r"_files: .*,(outputs/[^}]+)\}", "".join(path.read_text() for path in scales))
    assert all(any(part in f"{path}/" for part in prepare) for path in paths)


def check(*files):
    preflight.check_data(list(files), "data.train_files", prompt_key="prompt")


def test_good_data_passes(tmp_path):
    check(parquet(tmp_path / "good.parquet", [ROW, ROW]))


def test_missing_and_malformed_files_are_told_apart(tmp_path):
    with pytest.raises(ConfigError) as refused:
        check()
    assert refused.value.key == "data.train_files"
    with pytest.raises(MissingFileError):
        check(str(tmp_path / "none.parquet"))
    for name, content in (
        ("broken.parquet", b"PAR1 this is no parquet"),
        ("empty.parquet", b""),
        ("table.csv", b"a,b"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=name):
            check(str(tmp_path / name))
    with pytest.raises(DataError, match="no rows"):
        check(parquet(tmp_path / "norows.parquet", pd.DataFrame([ROW]).iloc[:0]))


@pytest.mark.parametrize("column", ["data_source", "prompt", "reward_model"])
def test_a_missing_column_is_named(tmp_path, column):
    row = {key: value for key, value in ROW.items() if key != column}
    with pytest.raises(DataError, match=f"no column '{column}'"):
        check(parquet(tmp_path / "less.parquet", [row]))


def test_wrong_shapes_are_named(tmp_path):
    with pytest.raises(DataError, match="chat messages"):
        check(parquet(tmp_path / "text.parquet", [ROW | {"prompt": "1 + 1?"}]))
    with pytest.raises(DataError, match="ground_truth"):
        check(parquet(tmp_path / "gold.parquet", [ROW | {"reward_model": {"style": "rule"}}]))


def make_model(folder):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"0")
    return folder


def test_model_folders(tmp_path):
    folder = make_model(tmp_path / "model")
    preflight.check_model(str(folder), "model.path")
    for name, told in (
        ("model.safetensors", "no weights"),
        ("tokenizer.json", "no tokenizer"),
        ("config.json", "config"),
    ):
        (folder / name).unlink()
        with pytest.raises(MissingFileError, match=told):
            preflight.check_model(str(folder), "model.path")
    (folder / "config.json").write_text("{")
    with pytest.raises(DataError, match="not JSON"):
        preflight.check_model(str(folder), "model.path")


@pytest.mark.parametrize("path", ["/no/such/model", "./none", "a/b/c", "plainname"])
def test_a_missing_local_model_is_told(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MissingFileError, match="does not exist"):
        preflight.check_model(path, "actor_rollout_ref.model.path")


def test_a_hub_id_that_cannot_be_had_is_told(monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(MissingFileError, match="neither a folder here nor"):
        preflight.check_model("nobody-here/no-such-model", "actor_rollout_ref.model.path")
    preflight.check_model("nobody-here/no-such-model", "actor_rollout_ref.model.path", offline_is_fatal=False)


def test_an_unset_model_is_told():
    with pytest.raises(ConfigError) as refused:
        preflight.check_model(None, "actor_rollout_ref.model.path")
    assert refused.value.key == "actor_rollout_ref.model.path"


def test_the_home_folder_is_written_out_for_everybody(monkeypatch):
    monkeypatch.setenv("HOME", "/users/me")
    config = OmegaConf.create(
        {"data": {"train_files": ["~/a.parquet", "/b.parquet"]}, "trainer": {"default_local_dir": "~/runs", "n": 1}}
    )
    preflight.expand_home(config)
    assert config.data.train_files == ["/users/me/a.parquet", "/b.parquet"]
    assert config.trainer == {"default_local_dir": "/users/me/runs", "n": 1}


def test_a_joined_cluster_is_told_where_relative_paths_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.parquet").touch()
    (tmp_path / "parquet").touch()
    config = OmegaConf.create(
        {
            "data": {"train_files": ["a.parquet", "owner/set"], "val_files": "a.parquet"},
            "model": {"path": "owner/model", "hook_path": "pkg://recipes.x"},
            "trainer": {"default_local_dir": "outputs/run", "project_name": "parquet", "some_dir": None},
            "serl": {"seeds": "a.parquet"},
        }
    )
    preflight.make_paths_absolute(config)
    here = str(tmp_path / "a.parquet")
    assert config.data == {"train_files": [here, "owner/set"], "val_files": here}
    assert config.model == {"path": "owner/model", "hook_path": "pkg://recipes.x"}
    assert config.trainer == {
        "default_local_dir": str(tmp_path / "outputs/run"), "project_name": "parquet", "some_dir": None
    }  # fmt: skip
    assert config.serl.seeds == here


def test_a_model_that_reads_ids_as_other_words_is_refused(tmp_path):
    def model(name, words):
        vocabulary = {word: number for number, word in enumerate(["<unk>", *words])}
        tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>").save_pretrained(tmp_path / name)
        (tmp_path / name / "config.json").write_text('{"model_type": "llama"}')
        return str(tmp_path / name)

    policy = model("policy", ["a", "b"])
    preflight.check_vocabulary(model("same", ["a", "b"]), policy, "critic.model.path")
    preflight.check_vocabulary("owner/not-here", policy, "critic.model.path")
    preflight.check_vocabulary(model("with-pad", ["a", "b", "<pad>"]), policy, "critic.model.path")
    with pytest.raises(ConfigError, match="id 1 is 'b' there and 'a' here") as refused:
        preflight.check_vocabulary(model("other", ["b", "a"]), policy, "critic.model.path")
    assert refused.value.key == "critic.model.path"


TEMPLATE = "{% for message in messages %}{{ message['role'] }} {{ message['content'] }} {% endfor %}"
NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role here') }}{% endif %}" + TEMPLATE


@pytest.fixture
def prompts(tmp_path, monkeypatch):
    """Check data of these rows with a tokenizer of this template, as SPPO or another recipe's dataset reads them."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))

    def check(rows, template=TEMPLATE, batch=2, limit=8, **more):
        words = {word: number for number, word in enumerate(["<unk>", "user", "system", "1", "+", "?"])}
        backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
        tokenizer.chat_template = template
        shutil.rmtree(tmp_path / "model", ignore_errors=True)
        tokenizer.save_pretrained(tmp_path / "model")
        (tmp_path / "model" / "config.json").write_text('{"model_type": "llama"}')
        file = parquet(tmp_path / f"{len(list(tmp_path.iterdir()))}.parquet", rows)
        data = {"train_files": file, "val_files": file, "max_prompt_length": "${limit}"}
        data |= {"filter_overlong_prompts": True, "return_raw_chat": True, "prompt_key": "prompt", "shuffle": True}
        policy = {"model": {"path": str(tmp_path / "model")}}
        config = OmegaConf.create({"data": data | more, "actor_rollout_ref": policy, "limit": limit})
        prompt_checks.check_prompts(config, batch)

    return check


def row(*contents, role="user"):
    return ROW | {"prompt": [{"role": role, "content": content} for content in contents]}


def test_rows_that_verl_would_drop_are_counted_before_the_start(prompts):
    prompts([row("1 + 1 ?")] * 3)
    with pytest.raises(DataError, match="each of the first 3 rows: longer than data.max_prompt_length=8"):
        prompts([row("1 + " * 20)] * 3)
    with pytest.raises(DataError, match=r"keeps 1 rows \(it leaves out 2: longer .*, and a step takes 2"):
        prompts([row("1 + 1 ?"), row("1 + " * 20), row("1 + " * 21)])
    with pytest.raises(DataError, match="keeps 3 rows, and a step takes 4"):
        prompts([row("1 + 1 ?")] * 3, batch=4)
    with pytest.raises(DataError, match="first 2 rows: no system role here"):
        prompts([row("1 + 1 ?", role="system")] * 2, NO_SYSTEM)
    with pytest.raises(DataError, match="first 2 rows: .*no chat template"):
        prompts([row("1 + 1 ?")] * 2, None)


def test_files_that_cannot_be_read_together_are_told(prompts, tmp_path):
    files = [parquet(tmp_path / f"{n}.parquet", [row("1") | {"extra_info": {"index": n}}]) for n in (0, "b")]
    with pytest.raises(DataError, match="verl's dataset cannot read"):
        prompts([row("1 + 1 ?")] * 2, train_files=files)


def test_a_base_model_keeps_its_rows_where_the_method_writes_plain_text(prompts):
    own = {"custom_cls": {"path": "pkg://recipes.step_ppo.sft_dataset", "name": "PromptDataset"}}
    prompts([row("1 + 1 ?")] * 2, None, **own)
    with pytest.raises(DataError, match="each of the first 2 rows"):
        prompts([row("1 + " * 20)] * 2, None, **own)


def test_a_template_that_refuses_a_role_is_told_at_the_start():
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>")))
    tokenizer.chat_template = NO_SYSTEM
    user = {"role": "user", "content": "1 + 1?"}
    preflight.check_rendering(tokenizer, [user], "prompts")
    with pytest.raises(
        ConfigError, match="prompts: the chat template takes no messages of system, user: no system role"
    ):
        preflight.check_rendering(tokenizer, [{"role": "system", "content": "Be brief."}, user], "prompts")
