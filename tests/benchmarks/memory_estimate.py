"""The memory estimate beside the measured peak: verl's own workers update models of random weights twice.

    python tests/benchmarks/memory_estimate.py [--case NAME ...] [--results FILE]

Only FSDP2: FSDP1 as verl builds it (`sync_module_states=True`) refuses parameters on a CPU.

One process each, forked from one that has only imported what they share. It trains a tiny model first, so that what the
libraries load at first use is not counted. Estimate and worker read the same composed config. The
measurement is the peak of resident memory (VmHWM, reset through /proc/self/clear_refs) during the two updates, above
the resident memory before the model was built. So that freed memory leaves the process, glibc has one arena there and
maps every block of more than 64 KiB for itself (:data:`ALLOCATOR`).
"""

import argparse
import ctypes
import gc
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
import traceback
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).with_suffix(".jsonl")
ALLOCATOR = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_MMAP_MAX_": "1000000",
}


@dataclass(frozen=True)
class Case:
    """What is measured once.

    Attributes:
        shows: what dominates, in words.
        rows: responses of a micro-batch, `length` tokens each, prompt included.
        rank: of the adapters; 0 trains all weights.
    """

    shows: str
    vocabulary: int
    hidden: int
    inner: int
    layers: int
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 64
    tied: bool = False
    kind: str = "Qwen3"
    rows: int = 2
    length: int = 64
    micro_batches: int = 2
    rank: int = 0
    checkpointing: bool = False
    packed: bool = False
    critic: bool = False
    compute: str = "fp32"

    @property
    def sizes(self) -> dict[str, Any]:
        sizes = {
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "tie_word_embeddings": self.tied,
        }
        return sizes | ({"head_dim": self.head_dim} if self.kind == "Qwen3" else {})

    @property
    def tiny(self) -> "Case":
        return replace(
            self, vocabulary=256, hidden=64, inner=128, layers=2, heads=2, kv_heads=1, head_dim=32, length=8, rows=2
        )


# 60 million parameters and few tokens, or few parameters and many tokens.
WIDE = Case("weights", 8192, 1024, 3072, 4, head_dim=128, rows=2, length=16)
LONG = Case("activations", 1024, 256, 1024, 4, head_dim=64, rows=2, length=1024)
VOCABULARY = Case("logits", 65536, 256, 512, 2, 4, 2, tied=True, rows=2, length=256)
CASES = {
    "full": WIDE,
    "full, Qwen2, tied": replace(WIDE, kind="Qwen2", tied=True),
    "LoRA": replace(WIDE, rank=16),
    "LoRA, rank 128, long": replace(LONG, rank=128),
    "long": LONG,
    "long, checkpointing": replace(LONG, checkpointing=True),
    "long, packed": replace(LONG, packed=True),
    "vocabulary": VOCABULARY,
    "vocabulary, packed": replace(VOCABULARY, packed=True),
    "vocabulary, untied": replace(VOCABULARY, tied=False, rows=1, length=32, shows="embeddings"),
    "critic": replace(WIDE, critic=True),
    "long, packed, bfloat16": replace(LONG, packed=True, compute="bf16"),
}


def make_model(case: Case, folder: Path) -> None:
    """Random weights in the layout that verl loads."""
    import torch
    import transformers

    config = getattr(transformers, f"{case.kind}Config")(**case.sizes, max_position_embeddings=8192)
    torch.manual_seed(0)
    getattr(transformers, f"{case.kind}ForCausalLM")(config).save_pretrained(folder)


def overrides(case: Case, model: Path) -> list[str]:
    """The command line of a run with the sizes of this case."""
    group = "critic" if case.critic else "actor_rollout_ref"
    engine = "critic.fsdp" if case.critic else f"{group}.actor.fsdp_config"
    budget = case.rows * case.length
    found = {
        "actor_rollout_ref.model.path": model,
        "+actor_rollout_ref.model.load_tokenizer": False,
        "data.max_prompt_length": case.length // 2,
        "data.max_response_length": case.length - case.length // 2,
        "actor_rollout_ref.actor.use_dynamic_bsz": case.packed,
        "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz": case.packed,
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": case.rows,
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": case.rows,
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": budget,
        f"{engine}.mixed_precision.param_dtype": case.compute,
        f"{group}.model.use_remove_padding": case.packed,
        f"{group}.model.enable_gradient_checkpointing": case.checkpointing,
        f"{group}.model.lora_rank": case.rank,
    }
    if case.critic:
        found |= {
            "critic.enable": True,
            "critic.model.path": model,
            "+critic.model.load_tokenizer": False,
            "+critic.ppo_infer_max_token_len_per_gpu": budget,
            "critic.ppo_max_token_len_per_gpu": budget,
            "critic.ppo_micro_batch_size_per_gpu": case.rows,
        }
    return ["scale=toy", "+platform=cpu", *(f"{key}={value}" for key, value in found.items())]


def config_of(case: Case, model: Path) -> Any:
    from recipes.launch.composition import compose_config

    return compose_config("recipes.sppo.config", "sppo", overrides(case, model))


def build(case: Case, config: Any) -> Any:
    """The function with which a run's worker updates this model; the worker is verl's, without Ray."""
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.config import TrainingWorkerConfig
    from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker
    from verl.workers.utils.losses import value_loss

    if not case.critic:
        actor = ActorRolloutRefWorker(config.actor_rollout_ref, role="actor")
        actor.init_model()
        return actor.update_actor
    # as verl/trainer/ppo/v1/trainer_base.py:264 does
    critic = omega_conf_to_dataclass(config.critic)
    critic.engine.infer_max_token_len_per_gpu = critic.ppo_infer_max_token_len_per_gpu
    critic.engine.max_token_len_per_gpu = critic.ppo_infer_max_token_len_per_gpu
    worker = TrainingWorker(
        TrainingWorkerConfig(
            model_type="value_model",
            model_config=critic.model,
            engine_config=critic.engine,
            optimizer_config=critic.optim,
            checkpoint_config=critic.checkpoint,
        )
    )
    worker.reset()
    worker.set_loss_fn(partial(value_loss, config=critic))
    return worker.train_mini_batch


def batch_of(case: Case, seed: int, temperature: float) -> Any:
    """One mini-batch of random tokens, with the fields that verl's trainer sends."""
    import torch
    from tensordict import TensorDict
    from verl.utils import tensordict_utils as tu

    rows, prompt = case.rows * case.micro_batches, case.length // 2
    response = case.length - prompt
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, case.vocabulary, (rows, case.length), generator=generator)
    mask = torch.ones(rows, response, dtype=torch.long)
    # SPPO's loss asks for one target per response
    noise = torch.randn(rows, 1, generator=generator).expand(rows, response)
    fields = {
        "prompts": tokens[:, :prompt],
        "responses": tokens[:, prompt:],
        "input_ids": tokens,
        "position_ids": torch.arange(case.length).repeat(rows, 1),
        "response_mask": mask,
        "loss_mask": torch.cat([torch.zeros(rows, prompt, dtype=torch.long), mask], 1),
        "old_log_probs": torch.full((rows, response), -1.0),
        "advantages": noise,
        "values": torch.zeros(rows, response),
        "returns": noise,
    }
    # the last row is a token shorter, so that there is something to mask
    ragged = {
        name: torch.nested.as_nested_tensor(
            [*rows_[:-1], rows_[-1][:-1]] if name != "prompts" else list(rows_), layout=torch.jagged
        )
        for name, rows_ in fields.items()
    }
    data = TensorDict(ragged, batch_size=rows)
    tu.assign_non_tensor(
        data,
        calculate_entropy=False,
        distillation_use_topk=False,
        distillation_only=False,
        global_batch_size=rows,
        mini_batch_size=rows,
        epochs=1,
        seed=seed,
        dataloader_kwargs={"shuffle": False},
        temperature=temperature,
    )
    return data


def resident(key: str = "VmRSS") -> int:
    """Bytes of this process in memory; `VmHWM` is the most since :func:`forget_peak`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(key)


def forget_peak() -> None:
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def start_process_group() -> None:
    import torch

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    os.environ["MASTER_PORT"] = str(port)
    torch.distributed.init_process_group("gloo", rank=0, world_size=1)


def train(case: Case, model: Path) -> None:
    make_model(case, model)
    config = config_of(case, model)
    build(case, config)(batch_of(case, 0, config.actor_rollout_ref.rollout.temperature))


def estimate_of(case: Case) -> Any:
    """What the launcher expects of this case's model: the same config, and no weights."""
    from recipes.launch.memory import parts_of

    with tempfile.TemporaryDirectory() as folder:
        sizes = case.sizes | {"model_type": case.kind.lower()}
        (Path(folder) / "config.json").write_text(json.dumps(sizes), encoding="utf-8")
        parts = parts_of(config_of(case, Path(folder)), "cpu", 0)
    assert parts is not None
    return parts[0][-1]


def measure(name: str, case: Case, model: Path) -> dict[str, Any]:
    """Bytes of this process."""
    start_process_group()
    train(case.tiny, model.parent / "tiny")
    forget_peak()
    config = config_of(case, model)
    before = resident()
    forget_peak()
    update = build(case, config)
    built = resident("VmHWM") - before
    peaks = []
    for seed in range(2):
        forget_peak()
        update(batch_of(case, seed, config.actor_rollout_ref.rollout.temperature))
        peaks.append(resident("VmHWM") - before)
    return {
        "case": name,
        "measured": max(peaks),
        "first_update": peaks[0],
        "building_measured": built,
        "machine": machine(),
    }


def machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "verl"))
    return f"{os.cpu_count()} processors ({platform.machine()}), {memory:.0f} GiB, {versions}"


def _in_a_fork(work: Any) -> Any:
    """What the function returns, in a process of its own; RuntimeError where it failed."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        try:
            found = json.dumps(work()).encode()
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(found)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        found = pipe.read()
    if os.waitpid(child, 0)[1] or not found:
        raise RuntimeError("the process of a case failed, see above")
    return json.loads(found)


def import_everything() -> None:
    import torch

    from recipes.launch.cluster import set_environment

    torch.set_num_threads(1)
    set_environment("cpu")
    for module in ("verl.workers.engine.fsdp", "verl.workers.engine_workers", "verl.workers.utils.losses", "peft"):
        __import__(module)


def measure_all(names: list[str], results: Path) -> None:
    """Write the file anew after every case; what it has of other cases stays."""
    import_everything()
    for name in names:
        case = CASES[name]
        with tempfile.TemporaryDirectory() as folder:
            _in_a_fork(partial(make_model, case, Path(folder) / "model"))
            found = _in_a_fork(partial(measure, name, case, Path(folder) / "model"))
        rows = {row["case"]: row for row in read(results)} | {name: found}
        lines = [json.dumps(rows[name]) for name in CASES if name in rows]
        results.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read(results: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()] if results.exists() else []


def run(names: list[str], results: Path) -> None:
    """Measure in a process with the allocator's settings.

    Raises:
        RuntimeError: with what the process said.
    """
    environment = (
        os.environ | ALLOCATOR | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    )
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    call = [sys.executable, __file__, "--measure", *names, "--results", str(results)]
    done = subprocess.run(
        call, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stdout[-6000:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure_all(arguments.measure, arguments.results)
        return
    run(arguments.case, arguments.results)


if __name__ == "__main__":
    main()
