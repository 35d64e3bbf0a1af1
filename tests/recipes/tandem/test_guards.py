"""Bad input on the command line: one clear sentence, exit code 2, and no Ray."""

import json
import os
import shutil
import subprocess
import sys

import pandas as pd
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

RUN_CASES = """
import contextlib, io, json, sys
from recipes.launch import start
from recipes.tandem.main import RECIPE
told = {}
for name, argv in json.load(open(sys.argv[1])).items():
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = start.main(RECIPE, argv)
    told[name] = [code, err.getvalue(), out.getvalue()]
import ray
print("RESULT" + json.dumps({"told": told, "ray": ray.is_initialized()}))
"""
TANDEM = "actor_rollout_ref.rollout.engine_kwargs.vllm.tandem_config"
SENTENCES = {
    "wrong junior path": "junior_model=/no/such/junior does not exist",
    "junior without weights": "holds no weights",
    "different tokenizer": "have different vocabularies",
    "no word boundaries": "words have no boundary",
    "unknown strategy": "selection_strategy is 'words'",
    "p above 1": "prob_senior is 1.5; expected a probability",
    "p below 0": "prob_senior is -0.1; expected a probability",
    "gap of zero": "max_gap_tokens is 0",
    "unknown engine key": "unknown tandem setting prob_seniour",
    "sglang": "actor_rollout_ref.rollout.name=sglang",
    "ordinary engine": "rollout.name=vllm cannot decode with two models",
    "ordinary agent loop": "would train on the junior's tokens",
    "ordinary manager": "validation would not be solo",
    "ordinary trainer": "set trainer.v1.trainer_mode=tandem, found grouped",
    "junior weight above 1": "junior_token_loss_weight must be less than or equal to 1",
    "published junior weight below 0": "tandem_jr_tkn_weight must be greater than or equal to 0",
    "junior weight with KL": "junior_token_loss_weight=0.2 weighs the tokens of the policy loss alone",
    "published junior weight with another loss": "junior_token_loss_weight=0.15 weighs the tokens",
    "junior weight without a junior": "mean something only with a junior",
    "published sharding": "frozen_tensor_parallel_size=2: the junior is sharded like the senior",
    "published context": "frozen_max_model_len=64: the junior reads what the senior reads",
    "junior device": "serve it and take preset=portable",
    "KL in reward": "set algorithm.use_kl_in_reward=false",
    "bypass mode": "set algorithm.rollout_correction.bypass_mode=false",
    "critic": "set critic.enable=false",
    "response normaliser with KL": "normaliser=response",
    "worker class by hand": "engine_kwargs.vllm.worker_cls='mine.Worker' is decided by tandem decoding",
    "shared weights without adapters": "junior cannot read the senior's weights: the senior has no adapters",
    "shared weights of merged adapters": "the senior has no adapters",
    "shared weights of another model": "and the senior's base is",
    "shared weights loaded as noise": "set load_format to auto",
    "pass@8 of 4": "algorithm.tandem.pass_k=8",
    "unknown option": "unknown key algorithm.tandem.validate",
    "benchmarks": "disagree about the data sources",
    "shared indices": "distinct values of extra_info.index",
    "no index": "no whole number in extra_info.index",
    "validation rows with names": "data.val_files: a row has 'a' for extra_info.index",
    "one validation row without index": "data.val_files: a row has None for extra_info.index",
    "joint baseline": "mean something only with a junior",
    "portable without a junior": "algorithm.tandem.portable.junior_url must be a valid string, found None",
    "portable on the tandem engine": "the portable path runs on an ordinary engine",
    "portable with another loop": "go together; take preset=portable",
    "portable with one seed": "set actor_rollout_ref.rollout.full_determinism=false",
    "portable with a setting of the junior's engine": "frozen_enforce_eager belongs to the junior's server",
    "nobody at the junior's address": "junior_url: http://127.0.0.1:1/v1/models cannot be reached",
}
JUNIOR = [
    "algorithm.tandem.portable.junior_url=http://127.0.0.1:1/v1",
    "algorithm.tandem.portable.junior_name=junior",
]


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


def rows(indices, source="toy"):
    return pd.DataFrame(
        {
            "data_source": source,
            "prompt": [{"role": "user", "content": "1 + 1?"}],
            "reward_model": {"style": "rule", "ground_truth": "2"},
            "extra_info": {"split": "train"} | ({} if index is None else {"index": index}),
        }
        for index in indices
    )


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guards")
    words = ["<unk>", "<eos>", "a", "\u0120a", "\u0120b", "b"]
    model = model_folder(folder / "model", words)
    other = model_folder(folder / "other", [*words[:-1], "c"])
    wordless = model_folder(folder / "wordless", ["<unk>", "<eos>", "a", "b"])
    weightless = folder / "weightless"
    shutil.copytree(model, weightless)
    (weightless / "model.safetensors").unlink()
    for name, indices in (
        ("good", range(4)),
        ("shared", [0, 0, 1, 2]),
        ("unnumbered", [None] * 4),
        ("named", list("abcd")),
        ("partly", [0, 1, None, 3]),
    ):
        rows(indices).to_parquet(folder / f"{name}.parquet")
    good = [
        "scale=toy",
        f"actor_rollout_ref.model.path={model}",
        f"data.train_files={folder}/good.parquet",
        f"data.val_files={folder}/good.parquet",
        f"trainer.default_local_dir={folder}/checkpoints",
    ]
    twin = model_folder(folder / "twin", words)
    sharing = [
        *good,
        f"{TANDEM}.share_weights=true",
        "actor_rollout_ref.model.lora_rank=8",
        "actor_rollout_ref.rollout.load_format=auto",
    ]
    return {
        "wrong junior path": [*good, f"{TANDEM}.junior_model=/no/such/junior"],
        "junior without weights": [*good, f"{TANDEM}.junior_model={weightless}"],
        "different tokenizer": [*good, f"{TANDEM}.junior_model={other}"],
        "no word boundaries": [*good, f"actor_rollout_ref.model.path={wordless}"],
        "unknown strategy": [*good, f"{TANDEM}.selection_strategy=words"],
        "p above 1": [*good, f"{TANDEM}.prob_senior=1.5"],
        "p below 0": [*good, f"{TANDEM}.prob_senior=-0.1"],
        "gap of zero": [*good, f"{TANDEM}.max_gap_tokens=0"],
        "unknown engine key": [*good, f"+{TANDEM}.prob_seniour=0.4"],
        "sglang": [*good, "actor_rollout_ref.rollout.name=sglang"],
        "ordinary engine": [*good, "actor_rollout_ref.rollout.name=vllm"],
        "ordinary agent loop": [*good, "actor_rollout_ref.rollout.agent.default_agent_loop=single_turn_agent"],
        "ordinary manager": [*good, "actor_rollout_ref.rollout.agent.agent_loop_manager_class=null"],
        "ordinary trainer": [*good, "trainer.v1.trainer_mode=grouped"],
        "junior weight above 1": [*good, "algorithm.tandem.junior_token_loss_weight=1.2"],
        "published junior weight below 0": [*good, f"+{TANDEM}.tandem_jr_tkn_weight=-0.15"],
        "junior weight with KL": [
            *good,
            "algorithm.tandem.junior_token_loss_weight=0.2",
            "actor_rollout_ref.actor.use_kl_loss=true",
        ],
        "published junior weight with another loss": [
            *good,
            f"+{TANDEM}.tandem_jr_tkn_weight=0.15",
            "actor_rollout_ref.actor.policy_loss.loss_mode=gspo",
        ],
        "junior weight without a junior": [*good, "preset=grpo", "algorithm.tandem.junior_token_loss_weight=0.2"],
        "published sharding": [*good, f"+{TANDEM}.frozen_tensor_parallel_size=2"],
        "published context": [*good, f"+{TANDEM}.frozen_max_model_len=64"],
        "junior device": [*good, f"+{TANDEM}.frozen_gpu_devices=cuda:1"],
        "KL in reward": [*good, "algorithm.use_kl_in_reward=true"],
        "bypass mode": [*good, "algorithm.rollout_correction.bypass_mode=true"],
        "critic": [*good, "critic.enable=true"],
        "response normaliser with KL": [
            *good,
            "algorithm.tandem.normaliser=response",
            "actor_rollout_ref.actor.use_kl_loss=true",
        ],
        "worker class by hand": [*good, "+actor_rollout_ref.rollout.engine_kwargs.vllm.worker_cls=mine.Worker"],
        "shared weights without adapters": [*good, f"{TANDEM}.share_weights=true"],
        "shared weights of merged adapters": [*sharing, "actor_rollout_ref.model.lora.merge=true"],
        "shared weights of another model": [*sharing, f"{TANDEM}.junior_model={twin}"],
        "shared weights loaded as noise": [*sharing, "actor_rollout_ref.rollout.load_format=dummy"],
        "pass@8 of 4": [*good, "algorithm.tandem.pass_k=8"],
        "unknown option": [*good, "+algorithm.tandem.validate=solo"],
        "benchmarks": [*good, "algorithm.tandem.benchmarks={AIME: [aime24]}"],
        "shared indices": [*good, f"data.train_files={folder}/shared.parquet"],
        "no index": [*good, f"data.train_files={folder}/unnumbered.parquet"],
        "validation rows with names": [*good, f"data.val_files={folder}/named.parquet"],
        "one validation row without index": [*good, f"data.val_files={folder}/partly.parquet"],
        "joint baseline": [*good, "preset=grpo", "algorithm.tandem.validation=both"],
        "portable without a junior": [*good, "preset=portable"],
        "portable on the tandem engine": [
            *good,
            "preset=portable",
            "actor_rollout_ref.rollout.name=tandem_vllm",
            *JUNIOR,
        ],
        "portable with another loop": [*good, "+algorithm.tandem.portable={junior_name: junior}"],
        "nobody at the junior's address": [
            *good,
            "preset=portable",
            "algorithm.tandem.portable.max_retries=0",
            *JUNIOR,
        ],
        "portable with one seed": [
            *good,
            "preset=portable",
            *JUNIOR,
            "actor_rollout_ref.rollout.full_determinism=true",
        ],
        "portable with a setting of the junior's engine": [
            *good,
            "preset=portable",
            *JUNIOR,
            "+algorithm.tandem.portable.tandem_config.frozen_enforce_eager=true",
        ],
        "good": [*good, "--dry-run"],
        "shared weights": [*sharing, "--dry-run"],
        "published names": [
            *good,
            f"+{TANDEM}.frozen_model={model}",
            f"+{TANDEM}.prob_primary=0.25",
            f"+{TANDEM}.frozen_tensor_parallel_size=1",
            f"+{TANDEM}.frozen_gpu_memory_utilization=0.9",
            f"+{TANDEM}.frozen_max_model_len=4096",
            "--dry-run",
        ],
        "junior weight": [*good, "algorithm.tandem.junior_token_loss_weight=0.2", "--dry-run"],
        "published junior weight": [*good, f"+{TANDEM}.tandem_jr_tkn_weight=0.15", "--dry-run"],
        "baseline": [*good, "preset=grpo", "--dry-run"],
    }


@pytest.fixture(scope="module")
def launched(cases, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    (folder / "cases.json").write_text(json.dumps(cases))
    cleared = {name: value for name, value in os.environ.items() if not name.startswith(("VERL_", "RAY_"))}
    done = subprocess.run(
        [sys.executable, "-c", RUN_CASES, str(folder / "cases.json")],
        env=cleared | {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert "RESULT" in done.stdout, done.stdout + done.stderr
    return json.loads(done.stdout.split("RESULT")[1].splitlines()[0])


@pytest.mark.parametrize("case", SENTENCES)
def test_bad_input_is_one_sentence(launched, case):
    code, error, _ = launched["told"][case]
    last = error.strip().splitlines()[-1]
    assert SENTENCES[case] in last
    assert code == 2
    assert last.startswith("tandem: ")
    assert "Traceback" not in error


def test_nothing_started_ray(launched):
    assert launched["ray"] is False


@pytest.mark.parametrize("case", ["good", "shared weights", "baseline"])
def test_what_is_right_passes(launched, case):
    code, error, out = launched["told"][case]
    assert code == 0, error
    assert "64 prompts x 8 = 512 responses, 2 optimiser updates" in out


def test_published_names_are_taken_with_a_notice(launched):
    code, error, _ = launched["told"]["published names"]
    assert code == 0, error
    assert "tandem_config.prob_primary is read as prob_senior=0.25" in error
    assert "tandem_config.frozen_model is read as junior_model=" in error
    assert "tandem_config.frozen_gpu_memory_utilization has no counterpart: both models share the device" in error


@pytest.mark.parametrize(("case", "weight"), [("junior weight", 0.2), ("published junior weight", 0.15)])
def test_a_junior_weight_is_taken_with_one_line_of_warning(launched, case, weight):
    code, error, _ = launched["told"][case]
    assert code == 0, error
    (line,) = [line for line in error.splitlines() if line.startswith("warning: ")]
    assert f"junior_token_loss_weight={weight} trains on the junior's tokens" in line and "collapse" in line
    assert "warning: " not in launched["told"]["good"][1]
