"""The stages of ``tests/gpu/run.sh``: commands with a limit, and what is read from each."""

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
OUT = Path(os.environ.get("GPU_RESULTS", ROOT / "outputs" / "gpu"))
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
TANDEM = "tests/vllm_patches/tandem"
MODES = ("lock_step", "lazy")
TWO_STEPS = ["scale=toy", "trainer.total_training_steps=2", "trainer.val_before_train=false", "trainer.test_freq=-1"]
TWO_STEPS += ["trainer.save_freq=-1", "data.val_max_samples=32"]
ADAPTERS = ["actor_rollout_ref.model.lora_rank=8", "actor_rollout_ref.model.lora_alpha=16"]
ADAPTERS += ["actor_rollout_ref.rollout.load_format=auto"]
OF_RECIPE = {
    "sppo": ["preset=grpo"],
    "tandem": [],
    "serl": [],
    "pasodoble": [],
    "step_ppo": ["preset=outcome", "critic.model.path=${actor_rollout_ref.model.path}"],
}
# SmolLM2 on the letters world, as in results/h200.jsonl, whose runs shared the GPU, up to ten at a time.
TEN_STEPS = ["scale=smollm2_135m", "trainer.total_training_steps=10", "trainer.test_freq=5", "trainer.save_freq=-1"]
REAL = {
    "sppo": (["preset=verl"], ["preset=paper"], ["preset=grpo"]),
    "tandem": ([],),
    "serl": (["variant=majority", "estimator=grpo"], ["variant=ground_truth", "estimator=grpo"]),
    "pasodoble": ([],),
    "step_ppo": (["preset=outcome"],),
}
# What is kept of a run's metrics; the first three are seconds.
KEPT = (
    "timing_s/step",
    "timing_s/gen",
    "timing_s/update_weights",
    "training/rollout_probs_diff_mean",
    "actor/grad_norm",
    "acc/mean@1",
)


@dataclass
class Step:
    """One command of a stage.

    Attributes:
        name: of the measurement.
        command: argument list.
        limit: seconds after which it is ended.
        environment: variables it gets beside ours.
        read: called afterwards with the folder of the step; what it returns is part of the measurement.
    """

    name: str
    command: list[str]
    limit: int
    environment: dict[str, str] = field(default_factory=dict)
    read: Callable[[Path], dict] = lambda folder: {}


@dataclass
class Stage:
    """Steps that belong together; ``needs`` says what the machine must have ("gpu" or nothing)."""

    steps: list[Step]
    needs: str = ""


def run_metrics(folder: Path) -> dict:
    """The kept metrics of a run's last step."""
    path = folder / "metrics.jsonl"
    last: dict = {}
    for line in path.read_text().splitlines() if path.is_file() else []:
        last |= json.loads(line)["data"]
    return {name: value for name, value in last.items() if name.endswith(KEPT)}


def toy_runs(more: list[str], tag: str) -> list[Step]:
    """Two steps of every recipe on its toy world, which is made first."""
    steps = []
    for recipe, overrides in OF_RECIPE.items():
        own = [] if recipe in ("sppo", "tandem") else ["--format", recipe]
        world = ROOT / "outputs" / (f"toy_{recipe}" if own else "toy")
        make = [sys.executable, "examples/toy/make.py", *own, "--out", str(world), "--seed", "0"]
        critic = ["critic.model.lora_rank=8"] if recipe == "step_ppo" and more else []
        command = [sys.executable, "-m", f"recipes.{recipe}.main", *TWO_STEPS, *overrides, *more, *critic]
        steps.append(Step(f"{tag}: world of {recipe}", make, 900))
        steps.append(Step(f"{tag}: {recipe}", command, 600, {"TOY_DIR": str(world)}, run_metrics))
    return steps


def real_runs() -> list[Step]:
    """Ten steps of every recipe on SmolLM2; its worlds are made first, for which pip must find the model."""
    steps = []
    for name in ("letters", "letters_pasodoble"):
        make = [sys.executable, "examples/toy/make.py", "--format", name, "--out", f"outputs/toy_{name}"]
        steps.append(Step(f"world {name}", make, 900))
    for recipe, choices in REAL.items():
        for choice in choices:
            command = [sys.executable, "-m", f"recipes.{recipe}.main", *TEN_STEPS, *choice]
            steps.append(Step(" ".join([recipe, *choice]), command, 900, read=run_metrics))
    return steps


def stages() -> dict[str, Stage]:
    """All stages in the order in which they prove most per minute."""
    decoder = [f"{TANDEM}/test_engine.py", f"{TANDEM}/test_engine_preemption.py"]
    latency = [sys.executable, "tests/benchmarks/tandem_latency.py", "--batches", "1", "16", "64", "--contexts", "1024"]
    return {
        "install": Stage([Step("doctor", [sys.executable, "-m", "recipes.launch.doctor", "--quick"], 180)]),
        "memory": Stage([Step("estimate", [*PYTEST, "tests/recipes/launch/test_memory.py"], 600)]),
        "decoder": Stage(
            [
                Step("float32", [*PYTEST, *decoder], 900),
                Step("bfloat16", [*PYTEST, f"{TANDEM}/test_engine_half_precision.py"], 600),
                Step("twins", [*PYTEST, "--long", f"{TANDEM}/test_engine_twins.py"], 600),
                Step("adapters", [*PYTEST, "--long", f"{TANDEM}/test_engine_lora.py"], 600),
                *(Step(f"sleep: {m}", [*PYTEST, f"{TANDEM}/test_engine_sleep.py", "-k", m], 300) for m in MODES),
            ],
            needs="gpu",
        ),
        "toy": Stage(toy_runs([], "all weights"), needs="gpu"),
        "lora": Stage(toy_runs(ADAPTERS, "adapters"), needs="gpu"),
        "real": Stage(real_runs(), needs="gpu"),
        "latency": Stage([Step("tandem", [*latency, "--json", str(OUT / "latency.json")], 900)], needs="gpu"),
    }


def gpu() -> str | None:
    """Name and memory of the first GPU that torch can use, None without one."""
    import torch

    if not torch.cuda.is_available():
        return None
    found = torch.cuda.get_device_properties(0)
    return f"{found.name}, {found.total_memory / 1024**3:.0f} GiB"


class PeakMemory:
    """The most memory in use on the first GPU while the block runs, in MiB; 0 without nvidia-smi."""

    COMMAND = ("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0")

    def __enter__(self) -> "PeakMemory":
        self.mib = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        if shutil.which("nvidia-smi"):
            self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._over.wait(0.5):
            done = subprocess.run(self.COMMAND, capture_output=True, text=True, check=False)
            if done.returncode == 0 and done.stdout.strip().isdigit():
                self.mib = max(self.mib, int(done.stdout))

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()


def measure(stage: str, step: Step) -> dict:
    """Run a step in a folder of its own; the record of what came out."""
    folder = OUT / stage / step.name.replace(": ", "_").replace(" ", "_")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    environment = os.environ | {"VERL_FILE_LOGGER_PATH": str(folder / "metrics.jsonl")} | step.environment
    began = time.monotonic()
    with PeakMemory() as peak, (folder / "log.txt").open("w") as log:
        try:
            code = subprocess.run(
                step.command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, timeout=step.limit
            ).returncode
        except subprocess.TimeoutExpired:
            code = 124
    record = {"stage": stage, "step": step.name, "ok": code == 0, "code": code, "log": str(folder / "log.txt")}
    record |= {"seconds": round(time.monotonic() - began, 1), "peak_mib": peak.mib}
    return record | {"found": step.read(folder)}


def write(record: dict) -> None:
    """Append a record, and write the summary anew."""
    OUT.mkdir(parents=True, exist_ok=True)
    results = OUT / "results.jsonl"
    with results.open("a") as file:
        file.write(json.dumps(record) + "\n")
    lines = ["| stage | step | result | seconds | peak MiB | found |", "|---|---|---|---|---|---|"]
    for line in results.read_text().splitlines():
        one = json.loads(line)
        outcome = "skipped: " + one["skipped"] if "skipped" in one else "ok" if one["ok"] else f"failed ({one['code']})"
        found = ", ".join(f"{name} {value:.3g}" for name, value in one.get("found", {}).items())
        lines.append(
            f"| {one['stage']} | {one.get('step', '')} | {outcome} | {one.get('seconds', '')} | "
            f"{one.get('peak_mib', '')} | {found} |"
        )
    (OUT / "summary.md").write_text("\n".join(lines) + "\n")


def main() -> int:
    """Run the stages that are named, or all; 1 when a step failed."""
    known = stages()
    parser = argparse.ArgumentParser(prog="bash tests/gpu/run.sh")
    parser.add_argument("stages", nargs="*", metavar="stage", help=", ".join(known))
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    unknown = [name for name in options.stages if name not in known]
    if unknown:
        parser.error(f"unknown stage {unknown[0]!r}; there are {', '.join(known)}")
    if options.list:
        for name, stage in known.items():
            limit = sum(step.limit for step in stage.steps)
            print(f"{name}: {len(stage.steps)} steps, at most {limit} s{', needs a GPU' if stage.needs else ''}")
        return 0
    (OUT / "results.jsonl").unlink(missing_ok=True)
    device = gpu()
    print(f"device: {device or 'no GPU that torch can use'}")
    failed = False
    for name in options.stages or known:
        stage = known[name]
        if stage.needs == "gpu" and device is None:
            write({"stage": name, "skipped": "torch has no GPU here"})
            print(f"{name}: skipped, torch has no GPU here")
            continue
        for step in stage.steps:
            record = measure(name, step) | {"device": device or "cpu"}
            write(record)
            failed |= not record["ok"]
            print(
                f"{name}, {step.name}: {'ok' if record['ok'] else 'FAILED, ' + record['log']} ({record['seconds']} s)"
            )
    print(f"written: {OUT / 'summary.md'}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
