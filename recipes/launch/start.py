"""Start a recipe: compose its config, refuse bad input before Ray starts, hand over to verl's ``run_ppo``.

A recipe's ``main.py`` describes itself with :class:`Recipe` and calls :func:`main`. Arguments are Hydra overrides, as
for ``verl.trainer.main_ppo``; ``--dry-run`` stops before Ray and shows what would run.

The platform is verl's own choice where an accelerator is at hand. Where neither this machine nor the cluster to join
has one, or with ``trainer.device=cpu``, the CPU layer (``recipes/core``) is laid over the config, and the
environment it needs travels to every process of the run.
"""

import itertools
import os
import sys
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recipes import plugin
from recipes.errors import CheckpointError, ConfigError, LaunchError, MissingFileError
from recipes.launch import adapter_checks, checks, cluster, cpu, memory, preflight, prompt_checks, worker_checks
from recipes.launch.composition import our_name
from recipes.plugin import Row

REFUSED = 2
EXIT_SECONDS = 10.0  # what the processes of a run that has ended may take to exit
WANDB_SECONDS = 120.0  # the same while wandb is among them, which sends what it has not sent yet
RAY_DID_NOT_START = "timed out during startup"


@dataclass(frozen=True)
class Recipe:
    """What the launcher has to know of a recipe.

    Attributes:
        name: folder under ``recipes``.
        config_name: the primary yaml in the recipe's ``config`` package.
        check: called with the composed config; raises ValueError with one sentence when the method cannot run with it.
        blocks: dotted keys whose content is the recipe's own (``check`` validates it).
        more_devices: devices the checked config takes beside ``trainer.nnodes`` x ``trainer.n_gpus_per_node``.
        second_model: the model that an engine holds beside its policy (:data:`recipes.launch.memory.SecondModel`).
        published: options of the published code, the last part of a key or a flag, and what they are called here.
        keeps_state: whether a checkpoint is complete only with the recipe's own state, ``<name>.json`` in its folder.
        mini_batches: rows of one optimizer step by role, where the recipe's trainer does not take verl's.
        own_prompts: whether its trainer gives out the prompts itself, so that a file may hold fewer than a step takes.
        prepare: part of a path, and the command that makes what is there; a refusal of a missing file names it.
    """

    name: str
    config_name: str
    check: Callable[[object], None]
    blocks: Collection[str] = ()
    more_devices: Callable[[object], int] = lambda config: 0
    mini_batches: Callable[[object], Mapping[str, int]] = worker_checks.mini_batches
    second_model: memory.SecondModel = memory.no_second_model
    published: Mapping[str, str] = field(default_factory=dict)
    keeps_state: bool = False
    own_prompts: bool = False
    prepare: Mapping[str, str] = field(default_factory=dict)

    @property
    def config_module(self) -> str:
        return f"recipes.{self.name}.config"

    @property
    def state_file(self) -> str | None:
        """The recipe's own state in a step folder (`recipes.core.state`)."""
        return f"{self.name}.json" if self.keeps_state else None

    @property
    def rows(self) -> tuple[Row, ...]:
        """The registrations a run needs in every process: the recipe's own and the shared ones."""
        rooms = (f"recipes.{self.name}.", "recipes.core.")
        return tuple(row for row in plugin.TABLE if row.target.startswith(rooms))


def main(recipe: Recipe, argv: Sequence[str] | None = None) -> int:
    """Run a recipe from the command line; the return value is the exit code.

    0: the run reached its end; 1: it failed; 2: it was refused; 75: it was asked to end and has saved, the same command
    goes on; 130 or 143: it was asked to end (SIGINT, SIGTERM) and abandoned the step in progress.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help"} & set(arguments):
        print(_usage(recipe))
        return 0
    dry_run = "--dry-run" in arguments
    overrides = [argument for argument in arguments if argument != "--dry-run"]
    try:
        return _launch(recipe, overrides, dry_run)
    except (LaunchError, ValueError) as error:
        if os.environ.get("VERL_DUETS_TRACEBACK") == "1":
            traceback.print_exc()
        print(f"{recipe.name}: {' '.join(str(error).split())}", file=sys.stderr)
        return REFUSED


def _usage(recipe: Recipe) -> str:
    return (
        f"usage: python -m recipes.{recipe.name}.main [--dry-run] [scale=toy] [key=value ...]\n\n"
        f"{sys.modules['__main__'].__doc__ or ''}\n"
        f"Overrides are Hydra's; keys are verl's ppo_trainer and the recipe's own (recipes/{recipe.name}/README.md).\n"
        "--dry-run composes and checks everything, prints what differs from verl's defaults, and starts nothing."
    )


def _launch(recipe: Recipe, overrides: list[str], dry_run: bool) -> int:
    from omegaconf.errors import OmegaConfBaseException

    try:
        config, device, address = _checked(recipe, overrides, dry_run)
    except (OSError, OmegaConfBaseException) as error:
        # A path that no file system takes, a key that is not there: the text of either names it.
        raise ConfigError(str(error)) from error
    return 0 if dry_run else _run(recipe, config, device, address)


def _checked(recipe: Recipe, overrides: list[str], dry_run: bool) -> tuple[Any, str, str | None]:
    """The composed config after every check, the device it is for, and the address of the cluster to join."""
    flags = [item for item in overrides if item.startswith("-")]
    if flags and (published := our_name(flags[0], recipe.published)):
        raise ConfigError(f"unknown option {flags[0]}: here it is {published}", flags[0])
    if flags:
        raise ConfigError(f"unknown option {flags[0]}; options are --dry-run and --help, everything else is key=value")
    checks.check_training_engine(overrides)
    address = cluster.cluster_address(overrides)
    device = cluster.choose_device(overrides, address)
    cluster.set_environment(device)

    from recipes.core import sync_guard
    from recipes.evaluation import during_training
    from recipes.launch.composition import compose_config, refuse_unknown_additions, verl_defaults

    evaluated, overrides = during_training.split(overrides)
    layered = [*cluster.platform_layer(device, address), *overrides]
    config = compose_config(recipe.config_module, recipe.config_name, layered, recipe.published)
    defaults = verl_defaults()
    refuse_unknown_additions(overrides, defaults, recipe.blocks, recipe.published)
    checks.check_kinds(config, defaults)
    preflight.expand_home(config)
    cpu.fit_cpu(config, device, overrides)
    _check_method(recipe, config)
    checks.check_platform(config, device)
    checks.check_one_turn(config)
    checks.disable_reward_model_sleep(config)
    checks.fall_back_to_sdpa(config, device)
    adapter_checks.check_adapters(config)
    checks.check_loggers(config.trainer.logger)
    checks.check_wandb(config.trainer)
    sync_guard.ask_for_log_probs(config, overrides)
    if dry_run:
        _describe(config, defaults, device, cluster.devices_of(config) + recipe.more_devices(config))
    memory.check_memory(config, device, second_model=recipe.second_model, show=dry_run)
    preflight.check_run(config, recipe.prepare, offline_is_fatal=not dry_run)
    prompt_checks.check_prompts(config, 1 if recipe.own_prompts else config.data.train_batch_size)
    if metrics := _metrics_file(config):
        preflight.check_writable(str(metrics.parent), "the folder of trainer.logger=file")
    worker_checks.check_workers(config, recipe.mini_batches(config))
    checks.check_users_code(config)
    checks.check_verl(config, recipe.name)
    checks.check_group_stage(config)
    checks.check_engine(device)
    checks.check_trl()
    if evaluated:
        during_training.add(config, evaluated)
    checks.check_registered(recipe.rows)
    return config, device, address


def _check_method(recipe: Recipe, config) -> None:
    if not config.trainer.use_v1:
        raise ConfigError("trainer.use_v1=false is verl's retired trainer: leave it true", "trainer.use_v1")
    try:
        recipe.check(config)
    except MissingFileError as error:
        raise MissingFileError(f"{error}{preflight.made_by(str(error), recipe.prepare)}") from error


def _describe(config, defaults, device: str, devices: int) -> None:
    from omegaconf import OmegaConf
    from rich.console import Console
    from rich.table import Table

    from recipes.launch.composition import difference

    print(OmegaConf.to_yaml(config, resolve=False))
    table = Table(title="What differs from verl's ppo_trainer")
    for column in ("key", "verl's default", "this run"):
        table.add_column(column, overflow="fold")
    for key, (theirs, ours) in sorted(difference(config, defaults).items()):
        table.add_row(key, str(theirs), str(ours))
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
    rollout, data, actor = config.actor_rollout_ref.rollout, config.data, config.actor_rollout_ref.actor
    trainer = config.trainer
    responses = data.train_batch_size * rollout.n
    updates = -(-data.train_batch_size // actor.ppo_mini_batch_size) * actor.ppo_epochs
    console.print(
        f"platform {device}; {devices} devices, {trainer.nnodes} x {trainer.n_gpus_per_node} train; per step "
        f"{data.train_batch_size} prompts x {rollout.n} = {responses} responses, {updates} optimiser updates, at most "
        f"{responses * data.max_response_length:,} response tokens and "
        f"{responses * (data.max_prompt_length + data.max_response_length):,} tokens trained on",
        highlight=False,
    )


def _run(recipe: Recipe, config, device: str, address: str | None) -> int:
    from omegaconf import OmegaConf

    from recipes.core import state
    from recipes.core.requests import RayRequests
    from recipes.launch import cluster, leftovers, resume, wandb_run
    from recipes.launch.monitor import Monitor, Stall
    from recipes.launch.signals import SAVED, Signals, limit_seconds

    limit, stall = limit_seconds(), Stall()
    for line in leftovers.remove_leftovers():
        print(f"removed {line}")
    if line := leftovers.unowned_line():
        print(line)
    checkpoints = Path(config.trainer.default_local_dir).absolute()
    step = _resume_step(config, checkpoints, recipe.state_file)
    if step:
        devices = config.trainer.nnodes * config.trainer.n_gpus_per_node
        adapter_folder = config.actor_rollout_ref.model.get("lora_adapter_path")
        rank = None if adapter_folder else adapter_checks.adapter_rank(config)
        resume.check_shards(state.resumed_folder(config, step), devices, rank)
        state.check_settings(state.resumed_folder(config, step), config)
    metrics = _metrics_file(config)
    if metrics is not None:
        metrics.parent.mkdir(parents=True, exist_ok=True)
        os.environ["VERL_FILE_LOGGER_PATH"] = str(metrics)
        if resume.carry_metrics_over(metrics, step, state.load_metrics(state.resumed_folder(config, step))):
            print(f"{recipe.name}: step {step} was saved and not logged; its line has what the checkpoint knows of it")
    total = config.trainer.total_training_steps
    if total is not None and step >= total:
        print(f"{recipe.name}: {checkpoints} is at step {step} of {total}; nothing is left to train")
        if metrics is not None:
            resume.restore_metrics(metrics)
        return 0

    more_devices = recipe.more_devices(config)
    if address is not None:
        cluster.check_cluster(config, address, more_devices)
    else:
        cluster.check_machine(config, device, more_devices)
    if "wandb" in _loggers(config):
        wandb_run.store_run_id(checkpoints, step)
    run = leftovers.begin_run()
    cluster.scale(config.actor_rollout_ref.model.path)
    # What the driver's environment decides (oc.env) must not be read again from a worker's.
    OmegaConf.resolve(config)
    if address is not None:
        preflight.make_paths_absolute(config)
    cluster.prepare_ray(config, device, address, more_devices)
    requests = RayRequests(run.name)
    monitor = Monitor(recipe.name, run, stall, step=lambda: requests.get("step"))
    monitor.start()
    signals = Signals(recipe.name, requests, limit)
    signals.start()
    try:
        _train(config, signals, joined=address is not None)
        stopped = signals.stopped_at()
        requests.clear()
    except (KeyboardInterrupt, SystemExit):
        # Ray turns what a handler raises while the driver waits into either of them.
        return signals.exit_code
    except Exception as error:
        traceback.print_exc()
        print(f"{recipe.name}: the run failed: {monitor.cause(error) or reason_of(error)}", file=sys.stderr)
        return 1
    finally:
        signals.stop()
        monitor.stop()
        if metrics is not None:
            resume.join_metrics(metrics)
        _shut_down(recipe.name, run)
    if stopped is not None:
        print(f"{recipe.name}: ended after step {stopped}, as asked; the same command goes on from there")
        return SAVED
    return 0


def reason_of(error: Exception) -> str:
    """Why a run failed, in one line: the last of the error's message, or what Ray's means where it tells too little."""
    text = str(error).strip()
    if RAY_DID_NOT_START in text:
        return (
            "Ray did not start within its own 30 s, as happens on a busy machine; nothing was trained, and the same "
            "command starts again"
        )
    return text.splitlines()[-1] if text else type(error).__name__


def _train(config, signals, *, joined: bool) -> None:
    from verl.trainer.main_ppo import TaskRunnerV1, run_ppo

    # Workers of a cluster that was running before do not inherit this process's environment.
    environment = cluster.services(os.environ) if joined else {}
    run_ppo(config, task_runner_class=cluster.PreparedRunner(TaskRunnerV1, environment, before=signals.listen))


def _shut_down(name: str, run) -> None:
    import ray

    from recipes.launch import leftovers

    if ray.is_initialized():
        ray.shutdown()
    _end_processes(name, run)
    leftovers.remove_shared_memory(run)
    leftovers.end_run(run)


def _end_processes(name: str, run, seconds: float = EXIT_SECONDS, wandb_seconds: float = WANDB_SECONDS) -> None:
    """End what is left of a run's processes after so many seconds; what wandb needs to send the rest, after more."""
    from recipes.launch import leftovers, wandb_run

    remaining = leftovers.wait_until_gone(run, seconds)
    if services := wandb_run.services(remaining):
        needed = {*services, *itertools.chain.from_iterable(services.values())}
        numbers = ", ".join(str(service.pid) for service in services)
        print(f"{name}: waiting up to {wandb_seconds:g} s for wandb to send the rest of the run (process {numbers})")
        leftovers.stop_processes([process for process in remaining if process not in needed])
        remaining = leftovers.wait_until_gone(run, wandb_seconds)
    leftovers.stop_processes(remaining)


def _resume_step(config, checkpoints: Path, state_file: str | None) -> int:
    from recipes.launch import resume

    if config.trainer.resume_mode == "disable":
        return 0
    per_node = config.trainer.n_gpus_per_node if config.trainer.nnodes > 1 else None
    if config.trainer.resume_mode == "resume_path":
        folder = Path(str(config.trainer.resume_from_path))
        named = resume.STEP_FOLDER.fullmatch(folder.name) and folder.is_dir()
        if not named or not resume.is_complete(folder, state_file, per_node):
            raise CheckpointError(f"trainer.resume_from_path={folder} is not a complete global_step_N folder")
        return int(folder.name.rpartition("_")[2])
    step, mended = resume.resume_step(checkpoints, state_file, per_node)
    if mended:
        print(mended, file=sys.stderr)
    return step


def _loggers(config) -> list[str]:
    logger = config.trainer.logger
    return [logger] if isinstance(logger, str) else list(logger or [])


def _metrics_file(config) -> Path | None:
    """Where verl's file logger will write, made absolute; None when it is not among the loggers."""
    if "file" not in _loggers(config):
        return None
    if path := os.environ.get("VERL_FILE_LOGGER_PATH"):
        return Path(path).absolute()
    root = Path(os.path.expanduser(os.environ.get("VERL_FILE_LOGGER_ROOT", ".")))
    return (root / config.trainer.project_name / f"{config.trainer.experiment_name}.jsonl").absolute()
