"""`bash run_X.sh --dry-run trainer.device=cuda` of every training launcher, with data and models of the real shape."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[3]
LLAMA = {"model_type": "llama"}
QWEN2 = {"model_type": "qwen2"}
QWEN3 = {"model_type": "qwen3", "head_dim": 128}
# Kind, vocabulary, hidden size, feed-forward size, layers, heads, key-value heads, context, one tensor for both ends.
MODELS = {
    "qwen3_4b": (QWEN3, 151936, 2560, 9728, 36, 32, 8, 40960, True),
    "qwen3_1_7b": (QWEN3, 151936, 2048, 6144, 28, 16, 8, 40960, True),
    "qwen2_5_7b": (QWEN2, 152064, 3584, 18944, 28, 28, 4, 32768, False),
    "llama3_2_3b": (LLAMA, 128256, 3072, 8192, 28, 24, 8, 131072, True),
    "llama2_7b": (LLAMA, 32000, 4096, 11008, 32, 32, 32, 4096, False),
}
KEYS = (
    "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads "
    "max_position_embeddings tie_word_embeddings"
).split()
# Launcher -> its model, and the devices that its header names.
LAUNCHERS = {
    **{f"pasodoble/run_{variant}_{n}gpu": ("qwen3_1_7b", n) for variant in ("online", "offline") for n in (4, 8)},
    "serl/run_llama3_2_3b": ("llama3_2_3b", 8),
    "serl/run_qwen2_5_7b": ("qwen2_5_7b", 8),
    "serl/run_qwen3_4b": ("qwen3_4b", 8),
    "sppo/run_qwen2_5_7b_math": ("qwen2_5_7b", 4),
    "sppo/run_qwen3_4b": ("qwen3_4b", 8),
    "step_ppo/run_step_ppo_logiqa2": ("llama2_7b", 4),
    "tandem/run_qwen3_4b": ("qwen3_4b", 2),
}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Models of the published shapes (a small tokenizer, no weights), and what the data commands make."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("prepared")
    words = Tokenizer(models.WordLevel({"<unk>": 0, "<eos>": 1, "Ġa": 2, "a.ĊĊ": 3}, unk_token="<unk>"))

    def model(path, name, **more):
        kind, *sizes = MODELS[name]
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", eos_token="<eos>")
        tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
        tokenizer.save_pretrained(path)
        (path / "config.json").write_text(json.dumps(kind | dict(zip(KEYS, sizes, strict=True)) | more))
        (path / "model.safetensors").write_bytes(b"0")

    for name in MODELS:
        model(folder / name, name)
    for place, labels in (("prm", 4), ("prm/backbone", 1)):
        model(folder / place, "llama2_7b", architectures=["LlamaForTokenClassification"], num_labels=labels)
    row = {"prompt": [{"role": "user", "content": "1 + 1?"}], "reward_model": {"style": "rule", "ground_truth": "2"}}
    for name, sources in (("math", ["math"]), ("benchmarks", ["aime24", "aime25", "aime26", "amc", "minerva"])):
        rows = [row | {"data_source": sources[i % len(sources)], "extra_info": {"index": i}} for i in range(2048)]
        pd.DataFrame(rows).to_parquet(folder / f"{name}.parquet")
    pd.DataFrame({"text": [f"Fact {i}." for i in range(64)]}).to_parquet(folder / "knowledge.parquet")
    (folder / "seeds.jsonl").write_text("".join(f'{{"problem": "{i} + {i}?"}}\n' for i in range(2000)))
    return folder


def test_every_launcher_of_a_training_run_stands_here():
    stages = {"run_sft", "run_dpo", "run_prm", "run_pipeline_logiqa2"}
    found = {f"{path.parent.name}/{path.stem}" for path in ROOT.glob("recipes/*/run_*.sh") if path.stem not in stages}
    assert found == set(LAUNCHERS)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_it_would_run_on_its_stated_hardware(launcher, prepared, tmp_path):
    recipe, (model, devices) = launcher.partition("/")[0], LAUNCHERS[launcher]
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TRAIN_FILES": str(prepared / "math.parquet"),
        "VAL_FILES": str(prepared / ("benchmarks" if recipe == "tandem" else "math")) + ".parquet",
        "SERL_DIR": str(prepared),
        "PRM_PATH": str(prepared / "prm"),
        **dict.fromkeys(("MODEL_PATH", "SOLVER_MODEL_NAME", "PROPOSER_MODEL_NAME"), str(prepared / model)),
    }
    more = [f"pasodoble.knowledge.path={prepared}/knowledge.parquet"] if recipe == "pasodoble" else []
    done = subprocess.run(
        ["bash", str(ROOT / "recipes" / f"{launcher}.sh"), "--dry-run", "trainer.device=cuda", *more],
        cwd=tmp_path, env=os.environ | environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert f"; {devices} devices" in done.stdout
    peaks = [float(size) for size in re.findall(r"peak of the \w+ phase +([\d.]+) GiB", done.stdout)]
    assert peaks and max(peaks) < 80
