"""Every launcher and combination of config groups x devices x FSDP x micro-batches is refused by us or fit for verl.

Each cell is composed and checked as the launcher does. What passes then goes through verl's own code as its workers
would run it: config validation, the step's size, `train_mini_batch`, `prepare_micro_batches` on the longest sequence,
vLLM's scheduler settings. The table of cells is printed with `-s`.
"""

import contextlib
import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

ROOT = Path(__file__).parents[3]
RECIPES = ("sppo", "tandem", "serl", "pasodoble", "step_ppo")
# nodes x devices of each
DEVICES = ((1, 1), (1, 2), (1, 4), (1, 8), (2, 8))
STRATEGIES = ("fsdp", "fsdp2")
# Devices, FSDP, whether micro-batches are packed: with --long, and without.
KINDS = tuple(itertools.product(DEVICES, STRATEGIES, (True, False)))
FEW_KINDS = (((1, 8), "fsdp2", True), ((2, 8), "fsdp2", False))
# The scales that meet every choice without --long; the others are in launchers, which are all checked.
FEW_SCALES = ("scale=qwen3_4b_lora_1gpu",)
# Where a scale packs and names no fixed size.
MICRO_BATCH = 2
# Choices that no number of devices opens: verl's checkpoint engines carry no adapters to rollouts of their own; with
# adapters the reference is the base model, which cannot be an average of the policy.
CLOSED = {"scale=qwen3_4b_lora_1gpu resources=split"}
# What a choice leaves to the user; a service that is not there closes all its cells.
NEEDED = {
    "preset=portable": ["algorithm.tandem.portable.junior_url=http://h/v1", "algorithm.tandem.portable.junior_name=j"]
}
GPU_BYTES = 80 * 10**9
# Scale -> (parameters, layers, key-value heads, head dimension, longest context) of the published models.
MODELS = {
    "qwen3_4b": (4.02e9, 36, 8, 128, 40960),
    "qwen3_4b_lora_1gpu": (4.02e9, 36, 8, 128, 40960),
    "qwen2_5_7b": (7.62e9, 28, 4, 128, 32768),
    "qwen2_5_7b_math": (7.62e9, 28, 4, 128, 32768),
    "llama3_2_3b": (3.21e9, 28, 8, 128, 131072),
    "logiqa2_llama2_7b": (6.74e9, 32, 32, 128, 4096),
    "qwen2_5_0_5b": (0.49e9, 24, 2, 64, 32768),
    "qwen2_5_1_5b": (1.54e9, 28, 2, 128, 32768),
    "qwen2_5_3b": (3.09e9, 36, 2, 128, 32768),
    "qwen3_0_6b": (0.6e9, 28, 8, 128, 40960),
    "qwen3_1_7b": (1.72e9, 28, 8, 128, 40960),
    "toy": (0.4e6, 2, 2, 16, 4096),
    "smollm2_135m": (0.135e9, 30, 3, 64, 8192),
}
pytestmark = [pytest.mark.timeout(1500)]


def group_choices(recipe):
    """Every scale with every preset or variant, and with every choice of each further group alone."""
    folder = ROOT / "recipes" / recipe / "config"
    groups = {
        path.name: [f"{path.name}={file.stem}" for file in sorted(path.glob("*.yaml"))]
        for path in sorted(folder.iterdir())
        if path.is_dir() and path.name != "__pycache__"
    }
    scales = groups.pop("scale")
    named = [choice for choices in groups.values() for choice in choices]
    return [[scale, choice, *NEEDED.get(choice, [])] for scale in scales for choice in named]


def launcher_overrides(folder):
    """What every launcher of a recipe's `main` passes to Python, by its name: what it starts only prints."""
    stub = folder / "bin"
    stub.mkdir()
    for name in ("python3", "python", "torchrun", "accelerate"):
        code = "import json, sys; print('ARGS', json.dumps(sys.argv[1:]))"
        (stub / name).write_text(f'#!/bin/bash\nexec {sys.executable} -c "{code}" "$@"\n')
        (stub / name).chmod(0o755)
    found = {}
    for recipe in RECIPES:
        for script in sorted((ROOT / "recipes" / recipe).glob("*.sh")):
            done = subprocess.run(
                ["bash", script],
                cwd=ROOT,
                env=os.environ | {"PATH": f"{stub}:{os.environ['PATH']}"},
                capture_output=True,
                text=True,
                timeout=60,
            )
            lines = [json.loads(line[4:]) for line in done.stdout.splitlines() if line.startswith("ARGS")]
            for arguments in lines:
                if arguments[:2] == ["-m", f"recipes.{recipe}.main"]:
                    found[f"{recipe}/{script.name}"] = (recipe, arguments[2:])
    return found


def refused_by_us(recipe, config):
    """Our sentence about a composed cell, None when it passes; files and libraries that are not here are no matter."""
    from recipes.errors import DataError, EnvironmentProblem, LaunchError, MissingFileError
    from recipes.launch import worker_checks

    try:
        recipe.check(config)
    except (MissingFileError, DataError, EnvironmentProblem):
        pass
    except (LaunchError, ValueError) as error:
        return str(error)
    except OSError:
        pass  # a tokenizer that is not here
    try:
        worker_checks.check_workers(config, recipe.mini_batches(config))
    except LaunchError as error:
        return str(error)
    return None


class Passed(Exception):
    """The checks before the first forward pass are behind us."""


def rows_of_length(count, length):
    import torch
    from tensordict import TensorDict

    ids = torch.nested.as_nested_tensor([torch.zeros(length, dtype=torch.int64)] * count, layout=torch.jagged)
    return TensorDict({"input_ids": ids}, batch_size=count)


def verl_refuses(recipe, config):
    """What verl's own code says about a cell in the order in which a run would meet it, None when it runs."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    from recipes.core.vllm_distribution import vllm_known_by_either_name

    try:
        # Model folders are another test's affair.
        folders = mock.patch("verl.workers.config.model.HFModelConfig.__post_init__", lambda self: None)
        # verl asks vLLM for the adapter ranks it serves.
        with contextlib.redirect_stdout(None), folders, vllm_known_by_either_name():
            validate_config(config, need_reference_policy(config), need_critic(config))
        with mock.patch("verl.workers.config.model.HFModelConfig.__post_init__", lambda self: None):
            check_step(recipe, config)
        check_rollout(config)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def as_the_worker_reads_it(ref):
    """The reference's config after the renaming in `init_model`, without which it is no config of an actor."""
    from omegaconf import open_dict

    ref = ref.copy()
    with open_dict(ref):
        ref.ppo_mini_batch_size = 1
        ref.ppo_micro_batch_size = ref.pop("log_prob_micro_batch_size", None)
        ref.ppo_micro_batch_size_per_gpu = ref.pop("log_prob_micro_batch_size_per_gpu", None)
        ref.use_dynamic_bsz = ref.pop("log_prob_use_dynamic_bsz", False)
        ref.ppo_max_token_len_per_gpu = ref.pop("log_prob_max_token_len_per_gpu", None)
    return ref


def check_step(recipe, config):
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.trainer.ppo.v1 import PPOTrainerSync
    from verl.utils import tensordict_utils as tu
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngine
    from verl.workers.engine.utils import prepare_micro_batches
    from verl.workers.engine_workers import TrainingWorker

    group, world = config.actor_rollout_ref, config.trainer.nnodes * config.trainer.n_gpus_per_node
    actor = omega_conf_to_dataclass(group.actor)

    def ranks(engine):
        size = engine.ulysses_sequence_parallel_size
        assert world % size == 0, "init_device_mesh: the mesh must hold every rank"
        with mock.patch("torch.distributed.get_world_size", return_value=world):
            found = FSDPEngine.get_data_parallel_size(SimpleNamespace(ulysses_sequence_parallel_size=size))
        return found, size

    dp, size = ranks(actor.engine)
    if recipe.name == "pasodoble":
        from recipes.pasodoble.roles import RoleTrainer

        stub = SimpleNamespace(mini_batch_size=config.pasodoble.solver_mini_batch_size)
        total = RoleTrainer._get_required_batch_multiple(stub, dp)
        trained = stub.mini_batch_size or total
    else:
        stub = SimpleNamespace(config=config, use_critic=need_critic(config), global_steps=1)
        total = PPOTrainerSync._get_required_batch_multiple(stub, dp)
        trained = group.actor.ppo_mini_batch_size * group.rollout.n

    def train(rows, ranks, mini_batch):
        assert rows % ranks == 0, "the dispatch deals out equal parts"
        data = rows_of_length(rows // ranks, 1)
        tu.assign_non_tensor(data, mini_batch_size=mini_batch, epochs=1)
        engine = SimpleNamespace(
            get_data_parallel_size=lambda: ranks,
            get_data_parallel_rank=lambda: 0,
            train_mode=mock.Mock(side_effect=Passed),
        )
        with pytest.raises(Passed):
            TrainingWorker.train_mini_batch(SimpleNamespace(engine=engine), data)
        return mini_batch // ranks

    def cut(rows, packed, fixed, tokens, size):
        longest = config.data.max_prompt_length + config.data.max_response_length
        data = rows_of_length(1, longest) if packed else rows_of_length(rows, 1)
        assert (tokens if packed else fixed) is not None, "the worker needs a size of its micro-batches"
        tu.assign_non_tensor(
            data,
            use_dynamic_bsz=packed,
            max_token_len_per_gpu=tokens,
            micro_batch_size_per_gpu=fixed,
            sp_size=size,
        )
        prepare_micro_batches(data, dp_group=None)

    assert group.actor.use_dynamic_bsz == group.rollout.log_prob_use_dynamic_bsz, "engine_workers.py, actor"
    rollout, ref = group.rollout, group.ref
    share = train(total, dp, trained)
    cut(share, actor.use_dynamic_bsz, actor.ppo_micro_batch_size_per_gpu, actor.ppo_max_token_len_per_gpu, size)
    fixed, tokens = rollout.log_prob_micro_batch_size_per_gpu, rollout.log_prob_max_token_len_per_gpu
    cut(total // dp, actor.use_dynamic_bsz, fixed, tokens, size)
    if need_reference_policy(config):
        dp, size = ranks(omega_conf_to_dataclass(as_the_worker_reads_it(ref)).engine)
        assert total % dp == 0, "the dispatch deals out equal parts"
        fixed, tokens = ref.log_prob_micro_batch_size_per_gpu, ref.log_prob_max_token_len_per_gpu
        cut(total // dp, ref.log_prob_use_dynamic_bsz, fixed, tokens, size)
    if need_critic(config):
        critic = omega_conf_to_dataclass(config.critic)
        dp, size = ranks(critic.engine)
        share = train(total, dp, config.critic.ppo_mini_batch_size * rollout.n)
        cut(share, critic.engine.use_dynamic_bsz, None, critic.ppo_infer_max_token_len_per_gpu, size)


def check_rollout(config):
    from vllm.config import SchedulerConfig

    group, trainer = config.actor_rollout_ref, config.trainer
    rollout = group.rollout
    engine = rollout.tensor_model_parallel_size * rollout.data_parallel_size * rollout.pipeline_model_parallel_size
    nodes, per_node = trainer.nnodes, trainer.n_gpus_per_node
    if not group.hybrid_engine:
        nodes, per_node = rollout.nnodes, rollout.n_gpus_per_node
    assert nodes * per_node % engine == 0, "engine_workers.py, rollout world size"
    assert engine % min(per_node, engine) == 0, "replica.py, world size"
    length = rollout.max_model_len or rollout.prompt_length + rollout.response_length
    SchedulerConfig(
        max_model_len=length,
        is_encoder_decoder=False,
        max_num_batched_tokens=rollout.max_num_batched_tokens,
        max_num_seqs=rollout.max_num_seqs,
        enable_chunked_prefill=rollout.enable_chunked_prefill,
    )
    assert length >= config.data.max_prompt_length + config.data.max_response_length, "responses would be cut"


def check_memory(scale, config):
    """vLLM must hold one sequence of full length beside its weights (two models for tandem) in its share of 80 GB."""
    parameters, layers, heads, dimension, context = MODELS[scale]
    rollout = config.actor_rollout_ref.rollout
    length = rollout.max_model_len or rollout.prompt_length + rollout.response_length
    assert length <= context, f"vLLM refuses a length of {length} for a model of {context}"
    models = 2 if rollout.name == "tandem" else 1
    share = float(rollout.gpu_memory_utilization) * GPU_BYTES
    parallel = rollout.tensor_model_parallel_size
    left = share - models * 2 * parameters / parallel - 2 * 10**9
    needed = models * length * 2 * layers * max(heads / parallel, 1) * dimension * 2
    assert needed <= left, f"{needed / 1e9:.1f} GB of keys and values, {left / 1e9:.1f} GB left of {share / 1e9:.0f}"


def cells(config, kinds):
    """Variants of one composed config over devices, strategies and kinds of micro-batches."""
    from omegaconf import open_dict

    for (nodes, per_node), strategy, packed in kinds:
        cell = config.copy()
        group = cell.actor_rollout_ref
        with open_dict(cell):
            cell.trainer.nnodes, cell.trainer.n_gpus_per_node = nodes, per_node
            for node in (group.actor, group.ref, cell.critic):
                node.strategy = strategy
            group.actor.use_dynamic_bsz = packed
            group.rollout.log_prob_use_dynamic_bsz = group.ref.log_prob_use_dynamic_bsz = packed
            for node, key in ((group.actor, "ppo"), (group.rollout, "log_prob"), (group.ref, "log_prob")):
                if not packed and node[f"{key}_micro_batch_size_per_gpu"] is None:
                    node[f"{key}_micro_batch_size_per_gpu"] = MICRO_BATCH
        yield f"{nodes}x{per_node} {strategy} {'packed' if packed else 'fixed'}", cell


@pytest.fixture(scope="module")
def launchers(tmp_path_factory):
    return launcher_overrides(tmp_path_factory.mktemp("launchers"))


def recipe_of(name):
    from importlib import import_module

    return import_module(f"recipes.{name}.main").RECIPE


@pytest.mark.parametrize("name", RECIPES)
def test_no_cell_that_we_let_pass_is_refused_by_verl(name, launchers, tmp_path, monkeypatch, capsys, request):
    from recipes.launch.composition import compose_config

    seeds = tmp_path / "seeds.jsonl"
    seeds.write_text("".join(json.dumps({"problem": f"{i} + {i}?"}) + "\n" for i in range(20)))
    monkeypatch.setenv("SERL_DIR", str(tmp_path))
    recipe = recipe_of(name)
    long = request.config.getoption("--long")
    kinds = KINDS if long else FEW_KINDS
    rows = {" ".join(choice): choice for choice in group_choices(name) if long or choice[0] in FEW_SCALES}
    rows |= {script: overrides for script, (owner, overrides) in launchers.items() if owner == name}
    assert any(script.endswith(".sh") for script in rows), "no launcher was read"
    counts, reasons, wrong, full = Counter(), Counter(), [], Counter()
    for row, overrides in rows.items():
        composed = compose_config(recipe.config_module, recipe.config_name, overrides)
        scale = next(item.partition("=")[2] for item in overrides if item.startswith("scale="))
        for kind, cell in cells(composed, kinds):
            told = refused_by_us(recipe, cell)
            if told is not None:
                counts["refused"] += 1
                reasons[told] += 1
                full[row] += not set(NEEDED) & set(overrides)
                assert len(told) > 40 and "\n" not in told, f"{row}, {kind}: {told!r} is no sentence"
                continue
            counts["passed"] += 1
            if refusal := verl_refuses(recipe, cell):
                wrong.append(f"{row}, {kind}: {refusal}")
            if kind.startswith("1x8"):
                try:
                    check_memory(scale, cell)
                except AssertionError as error:
                    wrong.append(f"{row}, {kind}: {error}")
    with capsys.disabled():
        print(f"\n{name}: {sum(counts.values())} cells, {counts['refused']} refused, {counts['passed']} passed")
        for reason, number in reasons.most_common(8):
            print(f"  refused {number}: {reason}")
    closed = [row for row, number in full.items() if number == len(kinds) and row not in CLOSED]
    assert not wrong, f"{len(wrong)} cells pass and fail in verl:\n" + "\n".join(wrong[:20])
    assert not closed, f"no cell of these starts: {closed}"
    assert counts["passed"] > counts["refused"] / 4


def test_a_launcher_is_its_scale(launchers):
    """Without variables it chooses groups and sets nothing: `python -m` with the same choices is the same run."""
    assert len(launchers) == 11
    for script, (_, overrides) in launchers.items():
        assert overrides[0].startswith(("scale=", "variant=")), script
        assert not [item for item in overrides if "." in item.partition("=")[0]], script


GOLDEN = Path(__file__).with_name("composed_configs.json")


def resolved(config):
    """Dotted keys and resolved values, as text where JSON has no such value."""
    from omegaconf import OmegaConf

    from recipes.launch.composition import _leaves

    return {
        key: json.loads(json.dumps(value, default=str))
        for key, value in _leaves(OmegaConf.to_container(config, resolve=True), "")
    }


@pytest.mark.long
def test_composed_configs_still_say_the_same(launchers, monkeypatch, tmp_path):
    """Every launcher and every scale x choice against the kept configs.

    Each recipe's first cell is kept whole, the others as what differs from it. `UPDATE_COMPOSED=1` with `--long` writes
    them anew.
    """
    from recipes.launch.composition import compose_config

    for name in ("HOME", "TOY_DIR", "LETTERS_DIR", "SERL_DIR"):
        monkeypatch.setenv(name, f"/{name}")
    monkeypatch.chdir(tmp_path)
    kept = {}
    for name in RECIPES:
        recipe, first = recipe_of(name), None
        rows = {" ".join(choice): choice for choice in sorted(group_choices(name))}
        rows |= {script: overrides for script, (owner, overrides) in launchers.items() if owner == name}
        for row, overrides in rows.items():
            text = json.dumps(resolved(compose_config(recipe.config_module, recipe.config_name, overrides)))
            found = json.loads(text.replace(str(ROOT), "/ROOT").replace(str(tmp_path), "/CWD"))
            if first is None:
                first, kept[f"{name}: {row}"] = found, found
                continue
            kept[f"{name}: {row}"] = {key: value for key, value in found.items() if first.get(key, "-") != value} | {
                key: "is not there" for key in first.keys() - found.keys()
            }
    if os.environ.get("UPDATE_COMPOSED"):
        GOLDEN.write_text(json.dumps(kept, indent=0, sort_keys=True) + "\n")
    golden = json.loads(GOLDEN.read_text())
    assert kept.keys() == golden.keys()
    for row, cell in kept.items():
        wanted = golden[row]
        differing = {key for key in cell.keys() | wanted.keys() if cell.get(key, "-") != wanted.get(key, "-")}
        assert not differing, f"{row}: {sorted((key, wanted.get(key), cell.get(key)) for key in differing)[:20]}"
