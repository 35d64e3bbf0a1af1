"""The evaluation with the real vLLM on the toy world: three ways to a model, and a kill in the middle."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "PYTHONPATH": str(ROOT),
}
ENGINE = [
    "engine.dtype=float32",
    "engine.max_model_len=256",
    "engine.kv_cache_memory_bytes=67108864",
    "engine.enforce_eager=true",
]
GREEDY = ["sampling.max_tokens=32", "limit=60"]
SENTENCES = ["partner.readings=[sentence_handoff]", "handoff.separator='='"]
WORDS = ["partner.readings=[word_handoff]"]
SAMPLED = ["sampling.max_tokens=32", "sampling.n=8", "sampling.temperature=1.0", "k=[1,2,8]", "limit=120"]
pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def world():
    folder = ROOT / "outputs" / "toy"
    maker = [sys.executable, "examples/toy/make.py", "--out", str(folder)]
    subprocess.run(maker, cwd=ROOT, check=True, timeout=900, env=os.environ | ENVIRONMENT)
    return folder


def command(output, *arguments):
    module = [sys.executable, "-m", "recipes.evaluation.main"]
    return [*module, *arguments, *ENGINE, f"output_dir={output}"]


def run(output, *arguments):
    done = subprocess.run(
        command(output, *arguments), cwd=ROOT, env=os.environ | ENVIRONMENT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((output / "summary.json").read_text())


def only(summary, ending=""):
    """The one result of the model alone, or of the model with a partner."""
    (benchmarks,) = (one for name, one in summary["models"].items() if name.partition("+")[2] == ending)
    (result,) = benchmarks.values()
    return result


@pytest.fixture(scope="module")
def from_folder(world, tmp_path_factory):
    output = tmp_path_factory.mktemp("folder")
    return output, run(output, f"models=[{world / 'model'}]", f"benchmarks=[{world / 'test.parquet'}]", *GREEDY)


def responses(output, ending=""):
    (path,) = (path for path in output.glob("*/test.responses.jsonl") if path.parent.name.partition("+")[2] == ending)
    lines = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    return {(line["problem"], line["sample"]): line["response"] for line in lines}


def make_checkpoint(model_folder, run_folder):
    """A checkpoint as verl's FSDP engine saves one, with the weights of an HF folder."""
    import torch
    from transformers import AutoModelForCausalLM

    actor = run_folder / "global_step_7" / "actor"
    (actor / "huggingface").mkdir(parents=True)
    for path in model_folder.iterdir():
        if path.suffix != ".safetensors":
            shutil.copy(path, actor / "huggingface")
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    torch.save(model.state_dict(), actor / "model_world_size_1_rank_0.pt")
    (actor / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": 1}))
    (run_folder / "latest_checkpointed_iteration.txt").write_text("7")


def test_a_verl_checkpoint_gives_what_its_hf_folder_gives(world, from_folder, tmp_path):
    make_checkpoint(world / "model", tmp_path / "run")
    arguments = [f"models=[{tmp_path / 'run'}]", f"benchmarks=[{world / 'test.parquet'}]", *GREEDY]
    summary = run(tmp_path / "out", *arguments)
    assert only(summary) == only(from_folder[1])
    assert responses(tmp_path / "out") == responses(from_folder[0])

    # and in a handoff with the folder of the same weights
    together = run(tmp_path / "out", *arguments, *SENTENCES, f"partner.model={world / 'model'}")
    assert set(only(together, "sentence_handoff")["handoff_ratio"].values()) == {1.0}
    assert responses(tmp_path / "out", "sentence_handoff") == responses(from_folder[0])


@pytest.fixture
def served(vllm_server, tmp_path):
    """A context with a model behind vLLM's server; gives the entry of `models` that names it."""

    @contextlib.contextmanager
    def start(model):
        with vllm_server(model, tmp_path / "server.log", max_model_len=256) as url:
            yield f"{{endpoint:'{url}',model:toy,tokenizer:'{model}'}}"

    return start


def test_vllms_server_gives_what_the_folder_gives(world, from_folder, served, tmp_path):
    with served(world / "model") as model:
        arguments = [f"models=[{model}]", f"benchmarks=[{world / 'test.parquet'}]", *GREEDY]
        summary = run(tmp_path / "out", *arguments, *SENTENCES, f"partner.model={world / 'model'}")
    assert only(summary)["metrics"] == only(from_folder[1])["metrics"]
    assert responses(tmp_path / "out") == responses(from_folder[0])
    assert responses(tmp_path / "out", "sentence_handoff") == responses(from_folder[0])
    together = only(summary, "sentence_handoff")
    assert set(together["handoff_ratio"].values()) == {1.0}
    assert 0.2 < together["own_token_share"] < 0.8


def test_multiple_choice_is_the_same_from_folder_checkpoint_and_server(served, tmp_path):
    world = ROOT / "outputs" / "toy_step_ppo"
    maker = [sys.executable, "examples/toy/make.py", "--format", "step_ppo", "--out", str(world)]
    subprocess.run(maker, cwd=ROOT, check=True, timeout=900, env=os.environ | ENVIRONMENT)
    data = ["benchmarks=[logiqa_v2]", f"data.logiqa_v2={world / 'test.parquet'}", "prompt.chat_template=false"]
    data += ["sampling.max_tokens=96", "limit=60"]
    folder = only(run(tmp_path / "folder", f"models=[{world / 'model'}]", *data))
    assert 0.2 < folder["metrics"]["pass@1"]["mean"] < 0.95
    make_checkpoint(world / "model", tmp_path / "run")
    assert only(run(tmp_path / "checkpoint", f"models=[{tmp_path / 'run'}]", *data)) == folder
    with served(world / "model") as model:
        assert only(run(tmp_path / "server", f"models=[{model}]", *data)) == folder


@pytest.mark.parametrize("way", [SENTENCES, WORDS], ids=["sentence", "word"])
def test_a_model_handing_off_to_itself_writes_what_it_writes_alone(world, from_folder, tmp_path, way):
    arguments = [f"models=[{world / 'model'}]", f"benchmarks=[{world / 'test.parquet'}]", *GREEDY]
    # Another name of the same folder: a model that is the partner has no handoff.
    summary = run(tmp_path / "out", *arguments, *way, f"partner.model={world}/./model")
    (ending,) = (name.partition("+")[2] for name in summary["models"] if "+" in name)
    together = only(summary, ending)
    assert responses(tmp_path / "out", ending) == responses(from_folder[0])
    assert together["metrics"] == only(from_folder[1])["metrics"]
    assert set(together["handoff_ratio"].values()) == {1.0}
    assert 0.2 < together["own_token_share"] < 0.8


@pytest.fixture(scope="module")
def two_models():
    """Two toy models of different shape and weights, with one tokenizer."""
    folder = ROOT / "outputs" / "toy_pair"
    maker = [sys.executable, "examples/toy/make.py", "--out", str(folder), "--shapes", "base,slim"]
    subprocess.run(maker, cwd=ROOT, check=True, timeout=1200, env=os.environ | ENVIRONMENT)
    return folder / "model", folder / "model_slim", folder / "test.parquet"


def greedy_misses(model_folder, partner_folder, data, output, ending):
    """Tokens that are not the greedy choice of the model their span names, and all tokens; read with Transformers."""
    import pyarrow.parquet as pq
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    models = {
        own: AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        for own, folder in ((True, model_folder), (False, partner_folder))
    }
    prompts = [row["prompt"] for row in pq.read_table(data).to_pylist()]
    (path,) = output.glob(f"*+{ending}/test.responses.jsonl")
    misses, tokens, read = 0, {True: 0, False: 0}, 0
    samples = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    for sample in samples:
        encoded = tokenizer(sample["response"], add_special_tokens=False, return_offsets_mapping=True)
        if len(encoded.input_ids) not in (sample["tokens"], sample["tokens"] - 1):
            continue
        read += 1
        text = tokenizer.apply_chat_template(
            prompts[int(sample["problem"])], tokenize=False, add_generation_prompt=True
        )
        prompt = tokenizer.encode(text, add_special_tokens=False)
        ids = torch.tensor([prompt + encoded.input_ids])
        with torch.no_grad():
            logits = {own: model(ids).logits[0].double() for own, model in models.items()}
        for position, (start, _) in enumerate(encoded.offset_mapping):
            own = any(first <= start < last for first, last in sample["own_spans"])
            row = logits[own][len(prompt) + position - 1]
            tokens[own] += 1
            # Two kernels may order two almost equal logits differently.
            misses += bool(row[encoded.input_ids[position]] < row.max() - 1e-3)
    assert read > 0.8 * len(samples)
    assert min(tokens.values()) > 60
    return misses, sum(tokens.values())


@pytest.mark.parametrize("way", [SENTENCES, WORDS], ids=["sentence_handoff", "word_handoff"])
def test_each_part_is_written_by_the_model_that_it_names(two_models, tmp_path, way, request):
    model, partner, data = two_models
    ending = request.node.callspec.id
    run(tmp_path / "out", f"models=[{model}]", f"benchmarks=[{data}]", f"partner.model={partner}", *way, *GREEDY)
    misses, tokens = greedy_misses(model, partner, data, tmp_path / "out", ending)
    assert misses <= 0.002 * tokens
    swapped, tokens = greedy_misses(partner, model, data, tmp_path / "out", ending)
    assert swapped > 0.02 * tokens, "swapped partners would pass"


def test_a_model_is_little_surprised_by_its_own_greedy_text(world, tmp_path):
    arguments = [f"models=[{world / 'model'}]", f"benchmarks=[{world / 'test.parquet'}]", *GREEDY]
    reading = ["partner.readings=[legibility]", f"partner.model={world / 'model'}"]
    legibility = only(run(tmp_path / "out", *arguments, *reading))["legibility"]
    assert 0.0 < legibility["nats_per_token"] < 1.0
    assert legibility["responses_left_out"] == 0 and legibility["tokens"] > 60


def finished(store):
    return store.read_bytes().count(b"\n") if store.exists() else 0


def test_a_killed_evaluation_loses_no_finished_problem(world, tmp_path):
    arguments = [f"models=[{world / 'model'}]", f"benchmarks=[{world / 'test.parquet'}]", *SAMPLED]
    whole = run(tmp_path / "whole", *arguments)
    log = (tmp_path / "log").open("w")
    child = subprocess.Popen(
        command(tmp_path / "killed", *arguments),
        cwd=ROOT,
        env=os.environ | ENVIRONMENT,
        start_new_session=True,
        stdout=log,
        stderr=log,
    )
    store = tmp_path / "killed" / "model" / "test.responses.jsonl"
    while child.poll() is None and finished(store) < 40:
        time.sleep(0.005)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait(timeout=300)
    assert not (tmp_path / "killed" / "summary.json").exists(), "the run ended before it was killed"
    assert 40 <= finished(store) < 1 + 120 * 8
    assert run(tmp_path / "killed", *arguments) == whole
