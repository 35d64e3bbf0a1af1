"""Every configuration that tandem training would run wrong with is refused with the key to set, before Ray starts."""

import functools
import json
import shutil

import pandas as pd
import pytest
from omegaconf import OmegaConf
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from recipes.errors import ConfigError, DataError, MissingFileError
from recipes.launch.composition import compose_config
from recipes.tandem.guards import check_tandem_config

ROLLOUT = "actor_rollout_ref.rollout"
VLLM = f"{ROLLOUT}.engine_kwargs.vllm"
TANDEM = f"{VLLM}.tandem_config"
OWN = "algorithm.tandem"
PORTABLE = {f"{OWN}.portable.junior_url": "http://127.0.0.1:1/v1", f"{OWN}.portable.junior_name": "junior"}
SHARING = {
    f"{TANDEM}.share_weights": True,
    "actor_rollout_ref.model.lora_rank": 8,
    f"{ROLLOUT}.load_format": "auto",
}


def tokenizer_of(words):
    vocabulary = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<eos>")


def model_folder(folder, words):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3", "vocab_size": len(words)}))
    (folder / "model.safetensors").write_bytes(b"0")
    tokenizer_of(words).save_pretrained(folder)
    return folder


def rows(indices):
    return pd.DataFrame(
        {
            "data_source": "toy",
            "prompt": [{"role": "user", "content": "1 + 1?"}],
            "reward_model": {"style": "rule", "ground_truth": "2"},
            "extra_info": {"split": "train"} | ({} if index is None else {"index": index}),
        }
        for index in indices
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Models `model`, its copy `twin`, `other` words, no words, no weights; data with and without their numbers."""
    folder = tmp_path_factory.mktemp("guards")
    words = ["<unk>", "<eos>", "a", "\u0120a", "\u0120b", "b"]
    for name, own in (("model", words), ("twin", words), ("other", [*words[:-1], "c"]), ("wordless", words[:3])):
        model_folder(folder / name, own)
    shutil.copytree(folder / "model", folder / "weightless")
    (folder / "weightless" / "model.safetensors").unlink()
    for name, indices in (
        ("good", range(4)),
        ("shared", [0, 0, 1, 2]),
        ("unnumbered", [None] * 4),
        ("named", list("abcd")),
        ("partly", [0, 1, None, 3]),
    ):
        rows(indices).to_parquet(folder / f"{name}.parquet")
    rows(range(4)).drop(columns="extra_info").to_parquet(folder / "without.parquet")
    rows(range(4)).assign(extra_info='{"index": 0}').to_parquet(folder / "text.parquet")
    rows([0, 0]).to_json(folder / "lines.jsonl", orient="records", lines=True)
    return folder


@functools.cache
def preset_config(preset):
    return compose_config("recipes.tandem.config", "tandem", ["scale=toy", f"preset={preset}"])


def check(folder, changes, preset="tandem"):
    config = preset_config(preset).copy()
    good = {
        "actor_rollout_ref.model.path": f"{folder}/model",
        "data.train_files": f"{folder}/good.parquet",
        "data.val_files": f"{folder}/good.parquet",
    }
    OmegaConf.set_struct(config, False)
    for key, value in (good | changes).items():
        value = value.replace("FOLDER", str(folder)) if isinstance(value, str) else value
        OmegaConf.update(config, key, value, force_add=True)
    check_tandem_config(config)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({f"{TANDEM}.junior_model": "FOLDER/other"}, f"{TANDEM}.junior_model"),
        ({"actor_rollout_ref.model.path": "FOLDER/wordless"}, f"{TANDEM}.junior_model"),
        ({f"{TANDEM}.prob_senior": 1.5}, TANDEM),
        ({f"{TANDEM}.prob_seniour": 0.4}, TANDEM),
        ({f"{TANDEM}.frozen_gpu_devices": "cuda:1"}, TANDEM),
        ({f"{TANDEM}.tandem_jr_tkn_weight": -0.15}, f"{TANDEM}.tandem_jr_tkn_weight"),
        ({f"{TANDEM}.frozen_tensor_parallel_size": 2}, f"{TANDEM}.frozen_tensor_parallel_size"),
        ({f"{TANDEM}.frozen_max_model_len": 64}, f"{TANDEM}.frozen_max_model_len"),
        ({f"{VLLM}.worker_cls": "mine.Worker"}, f"{VLLM}.worker_cls"),
        ({f"{TANDEM}.share_weights": True}, f"{TANDEM}.share_weights"),
        (SHARING | {"actor_rollout_ref.model.lora.merge": True}, f"{TANDEM}.share_weights"),
        (SHARING | {f"{TANDEM}.junior_model": "FOLDER/twin"}, f"{TANDEM}.share_weights"),
        (SHARING | {f"{ROLLOUT}.load_format": "dummy"}, f"{TANDEM}.share_weights"),
        ({f"{ROLLOUT}.name": "vllm"}, f"{ROLLOUT}.name"),
        ({f"{ROLLOUT}.agent.default_agent_loop": "single_turn_agent"}, f"{ROLLOUT}.agent.default_agent_loop"),
        ({f"{ROLLOUT}.agent.agent_loop_manager_class": None}, f"{ROLLOUT}.agent.agent_loop_manager_class"),
        ({"trainer.v1.trainer_mode": "grouped"}, "trainer.v1.trainer_mode"),
        ({"algorithm.use_kl_in_reward": True}, "algorithm.use_kl_in_reward"),
        ({"algorithm.rollout_correction.bypass_mode": True}, "algorithm.rollout_correction.bypass_mode"),
        ({"critic.enable": True}, "critic.enable"),
        ({f"{OWN}.junior_token_loss_weight": 1.2}, f"{OWN}.junior_token_loss_weight"),
        (
            {f"{OWN}.junior_token_loss_weight": 0.2, "actor_rollout_ref.actor.use_kl_loss": True},
            f"{OWN}.junior_token_loss_weight",
        ),
        (
            {f"{TANDEM}.tandem_jr_tkn_weight": 0.15, "actor_rollout_ref.actor.policy_loss.loss_mode": "gspo"},
            f"{OWN}.junior_token_loss_weight",
        ),
        ({f"{OWN}.normaliser": "response", "actor_rollout_ref.actor.use_kl_loss": True}, f"{OWN}.normaliser"),
        ({f"{OWN}.pass_k": 8}, f"{OWN}.pass_k"),
        ({f"{OWN}.validate": "solo"}, f"{OWN}.validate"),
        ({f"{OWN}.benchmarks": {"AIME": ["aime24"]}}, f"{OWN}.benchmarks"),
        ({f"{OWN}.portable": {"junior_name": "junior"}}, f"{ROLLOUT}.agent.default_agent_loop"),
    ],
)
def test_refused(folder, changes, key):
    with pytest.raises(ConfigError) as refusal:
        check(folder, changes)
    assert refusal.value.key == key


@pytest.mark.parametrize(
    ("preset", "changes", "key"),
    [
        ("grpo", {f"{OWN}.junior_token_loss_weight": 0.2}, f"{OWN}.junior_token_loss_weight"),
        ("grpo", {f"{OWN}.validation": "both"}, f"{OWN}.validation"),
        ("portable", {}, f"{OWN}.portable.junior_url"),
        ("portable", PORTABLE | {f"{OWN}.portable.max_retries": 0}, f"{OWN}.portable.junior_url"),
        ("portable", PORTABLE | {f"{ROLLOUT}.name": "tandem_vllm"}, f"{ROLLOUT}.name"),
        ("portable", PORTABLE | {f"{ROLLOUT}.full_determinism": True}, f"{ROLLOUT}.full_determinism"),
        (
            "portable",
            PORTABLE | {f"{OWN}.portable.tandem_config.frozen_enforce_eager": True},
            f"{OWN}.portable.tandem_config.frozen_enforce_eager",
        ),
    ],
)
def test_refused_without_a_tandem_engine(folder, preset, changes, key):
    with pytest.raises(ConfigError) as refusal:
        check(folder, changes, preset)
    assert refusal.value.key == key


@pytest.mark.parametrize("junior", ["/no/such/junior", "FOLDER/weightless"])
def test_a_junior_that_is_not_there_is_refused(folder, junior):
    with pytest.raises(MissingFileError):
        check(folder, {f"{TANDEM}.junior_model": junior})


@pytest.mark.parametrize(
    ("key", "file"),
    [
        ("train_files", "shared.parquet"),
        ("train_files", "unnumbered.parquet"),
        ("train_files", "without.parquet"),
        ("train_files", "text.parquet"),
        ("train_files", "lines.jsonl"),
        ("val_files", "named.parquet"),
        ("val_files", "partly.parquet"),
    ],
)
def test_rows_that_would_share_their_coins_are_refused(folder, key, file):
    with pytest.raises(DataError):
        check(folder, {f"data.{key}": f"FOLDER/{file}"})


def test_what_is_right_passes(folder, capsys):
    check(folder, {})
    check(folder, SHARING)
    check(folder, {}, preset="grpo")
    assert not capsys.readouterr().err


def test_published_names_are_taken_with_a_notice(folder, capsys):
    published = {"frozen_model": "FOLDER/model", "prob_primary": 0.25, "frozen_tensor_parallel_size": 1}
    published |= {"frozen_gpu_memory_utilization": 0.9, "frozen_max_model_len": 4096}
    check(folder, {f"{TANDEM}.{name}": value for name, value in published.items()})
    told = capsys.readouterr().err
    assert all(f"tandem_config.{name} " in told for name in published)


@pytest.mark.parametrize("key", [f"{OWN}.junior_token_loss_weight", f"{TANDEM}.tandem_jr_tkn_weight"])
def test_a_junior_weight_is_taken_with_one_line_of_warning(folder, capsys, key):
    check(folder, {key: 0.2})
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert "junior_token_loss_weight=0.2" in line
