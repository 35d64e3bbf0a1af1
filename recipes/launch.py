"""Start a recipe: compose its config, refuse bad input before Ray starts, hand over to verl's ``run_ppo``.

A recipe's ``main.py`` describes itself with :class:`Recipe` and calls :func:`main`. Arguments are Hydra overrides, as for
``verl.trainer.main_ppo``; ``--dry-run`` stops before Ray and shows what would run.

The platform is verl's own choice where an accelerator is at hand. Where neither this machine nor the cluster to join has
one, or with ``trainer.device=cpu``, the CPU layer (``recipes/platforms``) is laid over the config, and the environment it
needs travels to every process of the run.
"""

import contextlib
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from recipes import plugin
from recipes.errors import CheckpointError, ConfigError, EnvironmentProblem, LaunchError
from recipes.plugin import Row

FORWARDED = (
    "VERL_PLATFORM",
    "VERL_ENGINE_DEVICE",
    "VERL_DUETS_CPU",
    "VERL_DUETS_RUN",
    "VERL_DUETS_SYNC_TIMEOUT",
    "VERL_FILE_LOGGER_PATH",
    "VLLM_CPU_KVCACHE_SPACE",
    "VLLM_CPU_OMP_THREADS_BIND",
    "VLLM_NO_USAGE_STATS",
    "OMP_NUM_THREADS",
    "HF_HUB_OFFLINE",
    "HF_ENDPOINT",
    "TOKENIZERS_PARALLELISM",
)
SYNC_TIMEOUT_SECONDS = "60"
# verl warns of every training engine that is not installed, in every process.
QUIET = "ignore::UserWarning:verl.workers.engine"
REFUSED = 2


@dataclass(frozen=True)
class Recipe:
    """What the launcher has to know of a recipe.

    Attributes:
        name: folder under ``recipes``.
        config_name: the primary yaml in the recipe's ``config`` package.
        check: called with the composed config; raises ValueError with one sentence when the method cannot run with it.
        blocks: dotted keys whose content is the recipe's own (``check`` validates it).
    """

    name: str
    config_name: str
    check: Callable[[object], None]
    blocks: Collection[str] = ()

    @property
    def config_module(self) -> str:
        return f"recipes.{self.name}.config"

    @property
    def rows(self) -> tuple[Row, ...]:
        """The registrations a run needs in every process."""
        return tuple(row for row in plugin.TABLE if row.target.startswith(f"recipes.{self.name}."))


def main(recipe: Recipe, argv: Sequence[str] | None = None) -> int:
    """Run a recipe from the command line; the return value is the exit code: 0, 1 for a failed run, 2 for a refusal."""
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
    stray = [item for item in overrides if item.startswith("-")]
    if stray:
        raise ConfigError(f"unknown option {stray[0]}; options are --dry-run and --help, everything else is key=value")
    cluster = _cluster_address(overrides)
    device = _choose_device(overrides, cluster)
    _set_environment(device)

    from recipes.composition import compose_config, refuse_unknown_additions, verl_defaults

    config = compose_config(recipe.config_module, recipe.config_name, [*_platform_layer(device, cluster), *overrides])
    defaults = verl_defaults()
    refuse_unknown_additions(overrides, defaults, recipe.blocks)
    _check_method(recipe, config)
    _check_platform(config, device)
    _fall_back_to_sdpa(config, device)
    if dry_run:
        _describe(config, defaults, device)
    from recipes import preflight

    preflight.check_run(config, offline_is_fatal=not dry_run)
    _check_verl(config)
    _check_micro_batches(config)
    _check_engine(device)
    check_registered(recipe.rows)
    if dry_run:
        return 0
    return _run(recipe, config, device, cluster)


def _cluster_address(overrides: Sequence[str]) -> str | None:
    """Address of the Ray cluster to join, None to start one on this machine; an override wins over the environment."""
    address = os.environ.get("RAY_ADDRESS")
    for item in overrides:
        key, _, value = item.lstrip("+").partition("=")
        if key == "ray_kwargs.ray_init.address":
            address = value.strip("'\"")
    return None if address in (None, "", "local", "null") else address


def _choose_device(overrides: Sequence[str], cluster: str | None) -> str:
    """``cpu`` when it is asked for or nothing else is there; otherwise ``accelerator``, and verl finds out which."""
    asked = [item.partition("=")[2] for item in overrides if item.partition("=")[0].lstrip("+") == "trainer.device"]
    if asked:
        return "cpu" if asked[-1].strip("'\"") == "cpu" else "accelerator"
    platform = os.environ.get("VERL_PLATFORM", "").strip().lower()
    if platform:
        return "cpu" if platform == "cpu" else "accelerator"
    if cluster is not None:
        return "accelerator" if _cluster_has_accelerator(cluster) else "cpu"
    return "accelerator" if _machine_has_accelerator() else "cpu"


def _machine_has_accelerator() -> bool:
    import torch

    return torch.cuda.is_available() or (hasattr(torch, "npu") and torch.npu.is_available())


def _cluster_has_accelerator(address: str) -> bool:
    import ray

    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, OSError) as error:
        raise EnvironmentProblem(f"no Ray cluster answers at {address}: {str(error).splitlines()[0]}") from error
    try:
        return any(ray.cluster_resources().get(name, 0) > 0 for name in ("GPU", "NPU"))
    finally:
        ray.shutdown()


def _set_environment(device: str) -> None:
    defaults = {
        "VERL_DUETS_SYNC_TIMEOUT": SYNC_TIMEOUT_SECONDS,
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONWARNINGS": QUIET,
    }
    if device == "cpu":
        defaults |= {
            "VERL_PLATFORM": "cpu",
            # verl registers its FSDP engines for "cuda" and "npu"; this is its own switch to pick one of them.
            "VERL_ENGINE_DEVICE": "cuda",
            "VERL_DUETS_CPU": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 2) // 2)),
            "TOKENIZERS_PARALLELISM": "false",
            "VLLM_NO_USAGE_STATS": "1",
        }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    warnings.filterwarnings("ignore", message=r"\w+ engine is not available", category=UserWarning)
    plugin.start()


def _platform_layer(device: str, cluster: str | None) -> list[str]:
    if device != "cpu":
        return []
    if cluster is not None:
        return ["+platform=cpu", "~ray_kwargs.ray_init.object_store_memory", "~ray_kwargs.ray_init.include_dashboard"]
    return ["+platform=cpu"]


def _check_method(recipe: Recipe, config) -> None:
    if not config.trainer.use_v1:
        raise ConfigError("trainer.use_v1=false is verl's retired trainer; these recipes run on V1: leave it true")
    recipe.check(config)


def _check_platform(config, device: str) -> None:
    if device != "cpu":
        return
    rollout = config.actor_rollout_ref.rollout
    found = {
        "actor_rollout_ref.rollout.name": (rollout.name, lambda value: value != "sglang", "vllm"),
        "actor_rollout_ref.actor.strategy": (config.actor_rollout_ref.actor.strategy, _is_fsdp2, "fsdp2"),
        "actor_rollout_ref.ref.strategy": (config.actor_rollout_ref.ref.strategy, _is_fsdp2, "fsdp2"),
        "critic.strategy": (config.critic.strategy, _is_fsdp2, "fsdp2"),
        "actor_rollout_ref.rollout.free_cache_engine": (rollout.free_cache_engine, lambda value: not value, "false"),
        "actor_rollout_ref.rollout.enable_sleep_mode": (
            rollout.get("enable_sleep_mode"),
            lambda value: not value,
            "false",
        ),
    }
    for key, (value, fits, wanted) in found.items():
        if not fits(value):
            raise ConfigError(f"{key}={value} does not run on a CPU: leave it out or set {wanted}")


def _check_micro_batches(config) -> None:
    """verl asserts these inside a worker, minutes later."""
    actor_rollout_ref = config.actor_rollout_ref
    actor, rollout, ref = actor_rollout_ref.actor, actor_rollout_ref.rollout, actor_rollout_ref.ref
    mini_batch = actor.ppo_mini_batch_size * rollout.n
    ranks = config.trainer.nnodes * config.trainer.n_gpus_per_node
    sizes = {
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": (actor.ppo_micro_batch_size_per_gpu, actor),
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": (
            rollout.log_prob_micro_batch_size_per_gpu,
            rollout,
        ),
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": (ref.log_prob_micro_batch_size_per_gpu, ref),
    }
    for key, (size, role) in sizes.items():
        dynamic = role.get("use_dynamic_bsz", role.get("log_prob_use_dynamic_bsz", False))
        if size is not None and not dynamic and mini_batch % (size * ranks):
            raise ConfigError(
                f"{key}={size} on {ranks} ranks does not divide a mini-batch of {mini_batch} responses "
                f"(ppo_mini_batch_size {actor.ppo_mini_batch_size} x rollout.n {rollout.n}): choose a divisor of "
                f"{mini_batch // ranks if mini_batch % ranks == 0 else mini_batch}"
            )


def _check_engine(device: str) -> None:
    """vLLM has to find this package too: on a CPU its weights could not be synchronised otherwise."""
    if device != "cpu":
        return
    from importlib.metadata import entry_points

    from vllm_patches import guard

    found = {point.name: point for point in entry_points(group="vllm.general_plugins")}
    try:
        found[plugin.ENTRY_POINT].load()
    except (KeyError, ImportError, AttributeError) as error:
        raise EnvironmentProblem(
            f"vLLM would not find this package ({type(error).__name__}: {error}); run 'pip install -e .' in the repository"
        ) from error
    if problems := guard.problems("cpu_linear"):
        raise EnvironmentProblem(problems[0])


def _is_fsdp2(value: str) -> bool:
    return value == "fsdp2"


def _fall_back_to_sdpa(config, device: str) -> None:
    """Set sdpa where verl would take flash-attn by default and it is missing or broken."""
    if device == "cpu":
        return
    import importlib

    from omegaconf import OmegaConf, open_dict

    try:
        importlib.import_module("flash_attn")
    except ImportError as error:
        for key in ("actor_rollout_ref.model", "critic.model"):
            node = OmegaConf.select(config, key)
            if OmegaConf.select(node, "override_config.attn_implementation") is None:
                with open_dict(node):
                    node.override_config = {**(node.get("override_config") or {}), "attn_implementation": "sdpa"}
        print(f"flash-attn cannot be imported ({error}); attention runs on sdpa", file=sys.stderr)


def _check_verl(config) -> None:
    """verl's own validation, its assertions turned into a sentence."""
    from recipes import compat

    try:
        compat.ensure()
    except compat.UnknownUpstreamError as error:
        raise EnvironmentProblem(str(error)) from error

    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config
    from verl.utils.device import auto_set_device

    auto_set_device(config)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            validate_config(
                config=config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config)
            )
    except (AssertionError, TypeError, ValueError, NotImplementedError) as error:
        raise ConfigError(f"verl refuses the config: {error or type(error).__name__}") from error


def check_registered(rows: Sequence[Row]) -> None:
    """Refuse to start when a name the run needs is not in verl's live registries.

    Raises:
        EnvironmentProblem: with the first row that is missing and why.
    """
    lost = [state for state in plugin.check(rows) if not state.ok]
    if lost:
        row = lost[0].row
        raise EnvironmentProblem(
            f"verl does not know {row.kind} {row.name!r} of this recipe: {lost[0].detail}; "
            "'python -m recipes.doctor' shows the whole state"
        )
    if plugin.startup_errors:
        raise EnvironmentProblem(plugin.startup_errors[0].strip().splitlines()[-1])


def _describe(config, defaults, device: str) -> None:
    from omegaconf import OmegaConf
    from rich.console import Console
    from rich.table import Table

    from recipes.composition import difference

    print(OmegaConf.to_yaml(config, resolve=False))
    table = Table(title="What differs from verl's ppo_trainer")
    for column in ("key", "verl's default", "this run"):
        table.add_column(column, overflow="fold")
    for key, (theirs, ours) in sorted(difference(config, defaults).items()):
        table.add_row(key, str(theirs), str(ours))
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
    rollout, data, actor = config.actor_rollout_ref.rollout, config.data, config.actor_rollout_ref.actor
    responses = data.train_batch_size * rollout.n
    updates = -(-data.train_batch_size // actor.ppo_mini_batch_size) * actor.ppo_epochs
    console.print(
        f"platform {device}; {config.trainer.nnodes} x {config.trainer.n_gpus_per_node} devices; per step "
        f"{data.train_batch_size} prompts x {rollout.n} = {responses} responses, {updates} optimiser updates, at most "
        f"{responses * data.max_response_length:,} response tokens and "
        f"{responses * (data.max_prompt_length + data.max_response_length):,} tokens trained on",
        highlight=False,
    )


def _prepare_ray(config, device: str, cluster: str | None) -> None:
    """Logical devices for a local CPU cluster, and the environment every worker needs."""
    from omegaconf import OmegaConf, open_dict

    ray_init = config.ray_kwargs.ray_init
    with open_dict(config.ray_kwargs):
        environment = {name: os.environ[name] for name in FORWARDED if name in os.environ}
        runtime_env = OmegaConf.to_container(ray_init.get("runtime_env") or {}) or {}
        runtime_env["env_vars"] = {**environment, **(runtime_env.get("env_vars") or {})}
        ray_init.runtime_env = runtime_env
        if cluster is not None:
            ray_init.address = cluster
            ray_init.pop("num_cpus", None)
        elif device == "cpu":
            devices = config.trainer.n_gpus_per_node * config.trainer.nnodes
            reward_model = config.reward.reward_model
            if reward_model.enable and reward_model.enable_resource_pool:
                devices += reward_model.n_gpus_per_node * reward_model.nnodes
            ray_init.num_gpus = ray_init.get("num_gpus") or devices
            ray_init.num_cpus = ray_init.get("num_cpus") or max(os.cpu_count() or 1, 4 + 4 * devices)


def _check_cluster(config, cluster: str) -> None:
    """Every node of a cluster that is joined must have the package, and the cluster the devices."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    wanted = config.trainer.n_gpus_per_node * config.trainer.nnodes

    def installed() -> str | None:
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("verl-duets")
        except PackageNotFoundError:
            return None

    ray.init(address=cluster, log_to_driver=False, logging_level="ERROR")
    try:
        devices = max(ray.cluster_resources().get(name, 0) for name in ("GPU", "NPU"))
        if devices < wanted:
            raise EnvironmentProblem(
                f"the cluster at {cluster} offers {devices:g} devices and the run wants {wanted} "
                "(trainer.nnodes x trainer.n_gpus_per_node); nodes without an accelerator offer logical ones when started "
                "with 'ray start --num-gpus=N'"
            )
        probe = ray.remote(num_cpus=0)(installed)
        for node in ray.nodes():
            if not node["Alive"]:
                continue
            here = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            if ray.get(probe.options(scheduling_strategy=here).remote(), timeout=60) is None:
                raise EnvironmentProblem(
                    f"node {node['NodeManagerAddress']} has no verl-duets: install it there (pip install -e .), or name an "
                    "image that has it in ray_kwargs.ray_init.runtime_env"
                )
    finally:
        ray.shutdown()


def _run(recipe: Recipe, config, device: str, cluster: str | None) -> int:
    from recipes import leftovers, resume
    from recipes.watchdog import Watchdog, wait_until_gone

    for line in leftovers.remove_leftovers():
        print(f"removed {line}")
    checkpoints = Path(config.trainer.default_local_dir).absolute()
    step = _resume_step(config, checkpoints)
    metrics = _metrics_file(config)
    if metrics is not None:
        metrics.parent.mkdir(parents=True, exist_ok=True)
        os.environ["VERL_FILE_LOGGER_PATH"] = str(metrics)
        resume.carry_metrics_over(metrics, step)
    total = config.trainer.total_training_steps
    if total is not None and step >= total:
        print(f"{recipe.name}: {checkpoints} is at step {step} of {total}; nothing is left to train")
        if metrics is not None:
            resume.restore_metrics(metrics)
        return 0

    run = leftovers.begin_run()
    _prepare_ray(config, device, cluster)
    if cluster is not None:
        _check_cluster(config, cluster)
    watchdog = Watchdog(run)
    watchdog.start()
    try:
        _train(config)
    except Exception as error:
        traceback.print_exc()
        reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
        print(f"{recipe.name}: the run failed: {reason}", file=sys.stderr)
        return 1
    finally:
        watchdog.stop()
        if metrics is not None:
            resume.join_metrics(metrics)
        _shut_down(run, wait_until_gone)
    return 0


def _train(config) -> None:
    import ray
    from verl.trainer.main_ppo import TaskRunnerV1, run_ppo

    run_ppo(config, task_runner_class=TaskRunnerV1)
    ray.shutdown()


def _shut_down(run, wait_until_gone) -> None:
    import ray

    from recipes import leftovers

    if ray.is_initialized():
        ray.shutdown()
    leftovers.stop_processes(wait_until_gone(run, seconds=10))
    leftovers.remove_shared_memory(run)
    leftovers.end_run(run)


def _resume_step(config, checkpoints: Path) -> int:
    from recipes import resume

    if config.trainer.resume_mode == "disable":
        return 0
    if config.trainer.resume_mode == "resume_path":
        folder = Path(str(config.trainer.resume_from_path))
        if not resume.STEP_FOLDER.fullmatch(folder.name) or not folder.is_dir() or not resume.is_complete(folder):
            raise CheckpointError(f"trainer.resume_from_path={folder} is not a complete global_step_N folder")
        return int(folder.name.rpartition("_")[2])
    step, mended = resume.resume_step(checkpoints)
    if mended:
        print(mended, file=sys.stderr)
    return step


def _metrics_file(config) -> Path | None:
    """Where verl's file logger will write, made absolute; None when it is not among the loggers."""
    logger = config.trainer.logger
    if "file" not in ([logger] if isinstance(logger, str) else list(logger or [])):
        return None
    if path := os.environ.get("VERL_FILE_LOGGER_PATH"):
        return Path(path).absolute()
    root = Path(os.path.expanduser(os.environ.get("VERL_FILE_LOGGER_ROOT", ".")))
    return (root / config.trainer.project_name / f"{config.trainer.experiment_name}.jsonl").absolute()
