"""A folder in which the documented commands find what they expect: tiny models and files of the real columns."""

import json
import shutil
from pathlib import Path

import pyarrow
import pyarrow.parquet
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, Qwen3ForTokenClassification

ROOT = Path(__file__).resolve().parents[2]
ROWS = 256
MATH = ("DigitalLearningGmbH/MATH-lighteval", "What is 1 + 1?", "2")
PUZZLE = ("csitfun/LogiQA2.0", "Context:\nall\n\nQuestion:\nwhich?\n\nOptions:\nA. a\n\nThought 1:", "A")


def prepare(folder: Path) -> None:
    """Fill `folder` as the data preparation, the earlier stages and the toy world would."""
    for name in ("recipes", "examples", "tests", "reward_fns", "vllm_patches"):
        (folder / name).symlink_to(ROOT / name)
    out = folder / "outputs"
    policy, prm = folder / "policy", folder / "prm"
    _models(policy, prm)
    policies = [out / world / "model" for world in ("toy", "toy_serl", "toy_pasodoble", "toy_step_ppo")]
    policies += [out / "toy_pasodoble" / "proposer"]
    for scale in (ROOT / "recipes" / "pasodoble" / "config" / "scale").glob("qwen*.yaml"):
        policies += [out / "pasodoble_sft" / f"{role}_{scale.stem}" for role in ("solver", "proposer")]
    for world in ("toy", "toy_pasodoble", "toy_step_ppo"):
        for split in ("train", "test"):
            rows(out / world / f"{split}.parquet", PUZZLE if world == "toy_step_ppo" else MATH)
    for name in ("toy_serl", "data/serl"):
        for split in ("seeds", "train", "val", "test"):
            rows(out / name / f"{split}.parquet", MATH)
        seeds = [{"problem": f"What is {i} + 1?", "answer": str(i + 1)} for i in range(ROWS)]
        lines(out / name / "seeds.jsonl", seeds)
    lines(out / "toy_pasodoble" / "knowledge.jsonl", [{"text": f"Fact {i} holds."} for i in range(ROWS)])
    for split in ("train", "test"):
        rows(out / "data" / "math" / f"{split}.parquet", MATH)
    benchmarks = {"train": (MATH[0],), "amc": ("amc",), "aime": ("aime24", "aime25", "aime26"), "minerva": ("minerva",)}
    for name, sources in benchmarks.items():
        rows(out / "data" / "deepscaler" / f"{name}.parquet", MATH, sources)
    for name in ("logiqa2", "reclor", "logiqa2_qwen3_4b"):
        root = out / "step_ppo" / name
        policies += [root / "process_dpo", root / "sft" / "huggingface"]
        for split in ("train", "dev"):
            rows(root / f"{split}.parquet", PUZZLE)
        for number in (0, 1):
            shutil.copytree(prm, root / f"round{number}" / "prm")
            policies.append(root / f"round{number}" / "prm" / "backbone")
    shutil.copytree(prm, out / "quickstart" / "step_ppo" / "round0" / "prm")
    policies.append(out / "quickstart" / "step_ppo" / "round0" / "prm" / "backbone")
    for path in policies:
        shutil.copytree(policy, path)


def rows(path: Path, question: tuple[str, str, str], sources: tuple[str, ...] = ()) -> None:
    """A parquet file of verl's columns, with the question's data source or `sources` in turn."""
    source, prompt, gold = question
    sources = sources or (source,)
    table = [
        {
            "data_source": sources[i % len(sources)],
            "prompt": [{"role": "user", "content": prompt}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": gold},
            "extra_info": {"index": i, "split": path.stem},
        }
        for i in range(ROWS)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(table), path)


def lines(path: Path, records: list[dict]) -> None:
    """A jsonl file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def _models(policy: Path, prm: Path) -> None:
    torch.manual_seed(0)
    words = Tokenizer(models.WordLevel({"[UNK]": 0, "[EOS]": 1, "[PAD]": 2, "Ġword": 3}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="[EOS]", pad_token="[PAD]", unk_token="[UNK]")
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    sizes = dict(vocab_size=8, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    sizes |= dict(num_key_value_heads=2, head_dim=16, max_position_embeddings=131072)
    Qwen3ForCausalLM(Qwen3Config(**sizes)).save_pretrained(policy)
    Qwen3ForTokenClassification(Qwen3Config(**sizes, num_labels=4)).save_pretrained(prm)
    for folder in (policy, prm):
        tokenizer.save_pretrained(folder)
