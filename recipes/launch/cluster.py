"""Where a run goes: a new Ray cluster here or a running one, its accelerators or the CPU; and what travels along."""

import os
import re
import socket
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from recipes import plugin
from recipes.core import nvidia
from recipes.errors import EnvironmentProblem

FORWARDED = (
    "VERL_PLATFORM",
    "VERL_ENGINE_DEVICE",
    "VERL_DUETS_CPU",
    "VERL_DUETS_RUN",
    "VERL_DUETS_SYNC_TIMEOUT",
    "VERL_DUETS_SYNC_GUARD",
    "VERL_DUETS_UNTESTED_VERL",
    "VERL_DUETS_UNTESTED_VLLM",
    "VERL_FILE_LOGGER_PATH",
    "VLLM_CPU_KVCACHE_SPACE",
    "VLLM_CPU_OMP_THREADS_BIND",
    "VLLM_NO_USAGE_STATS",
    "VLLM_ENABLE_V1_MULTIPROCESSING",
    "OMP_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "GOMP_SPINCOUNT",
    "MALLOC_ARENA_MAX",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "HF_HUB_OFFLINE",
    "HF_ENDPOINT",
    "TOKENIZERS_PARALLELISM",
    "TORCHDYNAMO_DISABLE",
    "TQ_LOGGING_LEVEL",
)
# Settings and keys of services that a run may use. They reach the workers of a joined cluster beside the config, which
# verl prints and sends to its loggers.
SERVICES = re.compile(r"WANDB_\w+|MLFLOW_\w+|SWANLAB_\w+|HF_TOKEN|HUGGING_FACE_HUB_TOKEN|\w+_API_KEY")
SYNC_TIMEOUT_SECONDS = "60"
PROBE_SECONDS = 300.0
_DEVICES_WANTED = (
    "trainer.nnodes x trainer.n_gpus_per_node, a reward model's pool, and what the recipe takes beside them"
)
# verl warns of every training engine that is not installed, in every process.
QUIET = "ignore::UserWarning:verl.workers.engine"


def cluster_address(overrides: Sequence[str]) -> str | None:
    """Address of the Ray cluster to join, None to start one on this machine.

    In order: the override ``ray_kwargs.ray_init.address``, ``RAY_ADDRESS``, a cluster that ``ray start`` made on this
    host. ``local`` always starts a new one.
    """
    address = os.environ.get("RAY_ADDRESS")
    for item in overrides:
        key, _, value = item.lstrip("+").partition("=")
        if key == "ray_kwargs.ray_init.address":
            address = value.strip("'\"")
    if address == "local":
        return None
    return _started_on_this_host() if address in (None, "", "null") else address


def _started_on_this_host() -> str | None:
    from ray._private.services import find_bootstrap_address

    address = find_bootstrap_address(None)
    if not address or not _answers(address):
        return None
    _enable_token_auth()
    return address


def _enable_token_auth() -> None:
    """Newer Rays protect a cluster with a token, and read it by themselves only where they find the cluster."""
    try:
        from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available
    except ImportError:
        return
    maybe_enable_token_auth_if_token_available(warn_if_disabled=False)


def _answers(address: str) -> bool:
    """Whether something listens at ``host:port``; an address of another form is left for Ray to try."""
    host, _, port = address.rpartition(":")
    if not port.isdigit() or "/" in host:
        return True
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError:
        return False
    return True


def choose_device(overrides: Sequence[str], cluster: str | None) -> str:
    """``cpu`` when it is asked for or nothing else is there; otherwise ``accelerator``, and verl finds out which."""
    choices = [item.partition("=")[2] for item in overrides if item.partition("=")[0].lstrip("+") == "trainer.device"]
    if choices:
        return "cpu" if choices[-1].strip("'\"") == "cpu" else "accelerator"
    platform = os.environ.get("VERL_PLATFORM", "").strip().lower()
    if platform:
        return "cpu" if platform == "cpu" else "accelerator"
    if cluster is not None:
        return "accelerator" if _cluster_has_accelerator(cluster) else "cpu"
    return "accelerator" if _machine_has_accelerator() else "cpu"


def _machine_has_accelerator() -> bool:
    """Whether torch can use an accelerator of this machine.

    Raises:
        EnvironmentProblem: there is a GPU that torch cannot use; the CPU takes its place only when asked for.
    """
    import torch

    if torch.cuda.is_available() or (hasattr(torch, "npu") and torch.npu.is_available()):
        return True
    if problem := nvidia.unusable():
        raise EnvironmentProblem(f"{problem}; mend that, or set trainer.device=cpu to run on the processor")
    return False


def _join(address: str) -> None:
    """Connect this process to a running cluster, to look at it.

    Raises:
        EnvironmentProblem: nobody answers there.
    """
    import ray

    if not _answers(address):
        raise EnvironmentProblem(f"no Ray cluster answers at {address}: nothing listens there")
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, OSError) as error:
        raise EnvironmentProblem(
            f"no Ray cluster answers at {address}: {str(error).splitlines()[0]}{_hint_at_a_token()}"
        ) from error


def _hint_at_a_token() -> str:
    return "" if os.environ.get("RAY_AUTH_MODE") else " (a cluster with token authentication needs RAY_AUTH_MODE=token)"


def _cluster_has_accelerator(address: str) -> bool:
    import ray

    _join(address)
    try:
        return any(ray.cluster_resources().get(name, 0) > 0 for name in ("GPU", "NPU"))
    finally:
        ray.shutdown()


def set_environment(device: str) -> None:
    defaults = {
        "VERL_DUETS_SYNC_TIMEOUT": SYNC_TIMEOUT_SECONDS,
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray's head keeps a record of 100,000 calls by default, and names of a million whose record it gave up: 2 MB
        # more with every step of the toy world, then 50 kB.
        "RAY_task_events_max_num_task_in_gcs": "10000",
        "RAY_task_events_max_dropped_task_attempts_tracked_per_job_in_gcs": "10000",
        "PYTHONWARNINGS": QUIET,
    }
    if device == "cpu":
        defaults |= {
            "VERL_PLATFORM": "cpu",
            # verl registers its FSDP engines for "cuda" and "npu"; this is its own switch to pick one of them.
            "VERL_ENGINE_DEVICE": "cuda",
            "VERL_DUETS_CPU": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "TOKENIZERS_PARALLELISM": "false",
            "TQ_LOGGING_LEVEL": "ERROR",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    warnings.filterwarnings("ignore", message=r"\w+ engine is not available", category=UserWarning)
    plugin.start()


def platform_layer(device: str, cluster: str | None) -> list[str]:
    if device != "cpu":
        return []
    if cluster is not None:
        return ["+platform=cpu", "~ray_kwargs.ray_init.object_store_memory", "~ray_kwargs.ray_init.include_dashboard"]
    return ["+platform=cpu"]


def prepare_ray(config, device: str, cluster: str | None, more_devices: int = 0) -> None:
    """Logical devices for a local CPU cluster, and the environment every worker needs."""
    from omegaconf import OmegaConf, open_dict

    ray_init = config.ray_kwargs.ray_init
    with open_dict(config.ray_kwargs):
        environment = {name: os.environ[name] for name in FORWARDED if name in os.environ}
        runtime_env = OmegaConf.to_container(OmegaConf.create(ray_init.get("runtime_env") or {}))
        typed = {name: str(value) for name, value in (runtime_env.get("env_vars") or {}).items()}  # SEED=1 is a number
        runtime_env["env_vars"] = environment | typed
        ray_init.runtime_env = runtime_env
        if cluster is not None:
            ray_init.address = cluster
            ray_init.pop("num_cpus", None)
            return
        ray_init.address = "local"
        if device == "cpu":
            devices = devices_of(config) + more_devices
            # Ray refuses more logical devices than this names, and "" is how users hide a GPU from a CPU run.
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
            ray_init.num_gpus = ray_init.get("num_gpus") or devices
            ray_init.num_cpus = ray_init.get("num_cpus") or max(os.cpu_count() or 1, 4 + 4 * devices)


def services(environment: Mapping[str, str]) -> dict[str, str]:
    """What of an environment concerns services such as wandb and the Hugging Face hub."""
    return {name: value for name, value in environment.items() if SERVICES.fullmatch(name)}


class PreparedRunner:
    """A task runner, started with settings and keys of services that every worker inherits from it.

    Args:
        environment: these settings.
        before: called in the driver when Ray has started and the runner has not.
    """

    def __init__(self, runner, environment: Mapping[str, str], before: Callable[[], None] = lambda: None):
        self._runner, self._environment, self._before = runner, dict(environment), before

    def options(self, runtime_env: Mapping | None = None, **options):
        """verl's own options of the runner, the environment added to them."""
        self._before()
        if self._environment:
            options["runtime_env"] = {**(runtime_env or {}), "env_vars": self._environment}
        elif runtime_env:
            options["runtime_env"] = runtime_env
        return self._runner.options(**options)

    def remote(self):
        """Start the runner."""
        return self.options().remote()


def devices_of(config) -> int:
    """Devices that train, and those of a reward model in a pool of its own."""
    devices = config.trainer.n_gpus_per_node * config.trainer.nnodes
    reward_model = config.reward.reward_model
    if reward_model.enable and reward_model.enable_resource_pool:
        devices += reward_model.n_gpus_per_node * reward_model.nnodes
    return devices


def check_machine(config, device: str, more_devices: int = 0) -> None:
    """This machine must have the accelerators of a run that starts its own Ray; a CPU offers as many as are asked for.

    Raises:
        EnvironmentProblem: with what there is and what is wanted.
    """
    if device == "cpu":
        return
    import torch

    wanted, available = devices_of(config) + more_devices, torch.accelerator.device_count()
    if available < wanted:
        raise EnvironmentProblem(
            f"this machine has {available} devices and the run wants {wanted} ({_DEVICES_WANTED}); to use several "
            "machines, start a Ray cluster on them and set RAY_ADDRESS"
        )


def check_cluster(config, cluster: str, more_devices: int = 0) -> None:
    """Every node of a cluster that is joined must have the package, and the cluster the devices."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    needed = devices_of(config) + more_devices

    def installed() -> str | None:
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("verl-duets")
        except PackageNotFoundError:
            return None

    _join(cluster)
    try:
        devices = max(ray.cluster_resources().get(name, 0) for name in ("GPU", "NPU"))
        if devices < needed:
            raise EnvironmentProblem(
                f"the cluster at {cluster} offers {devices:g} devices and the run wants {needed} ({_DEVICES_WANTED}); "
                "nodes without an accelerator offer logical ones when started with 'ray start --num-gpus=N'"
            )
        probe = ray.remote(num_cpus=0)(installed)
        hosts = {}
        for node in ray.nodes():
            if node["Alive"]:
                here = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                hosts[probe.options(scheduling_strategy=here).remote()] = node["NodeManagerAddress"]
        # A busy node takes minutes to start a first worker.
        answered, silent = ray.wait(list(hosts), num_returns=len(hosts), timeout=PROBE_SECONDS)
        if silent:
            names = ", ".join(sorted(hosts[reference] for reference in silent))
            raise EnvironmentProblem(
                f"{names} of the cluster at {cluster} started no worker within {PROBE_SECONDS:g} s: see 'ray status' "
                "there, and at what else uses the node"
            )
        for reference in answered:
            if ray.get(reference) is None:
                raise EnvironmentProblem(
                    f"node {hosts[reference]} has no verl-duets: install it there (pip install -e .), or name an image "
                    "that has it in ray_kwargs.ray_init.runtime_env"
                )
    finally:
        ray.shutdown()


SECONDS_PER_GIGABYTE = 2.0
"""For one acknowledgement of a weight sync: an engine may have to copy, shard and quantise everything it was sent."""
SYNC_VARIABLE = "VERL_DUETS_SYNC_TIMEOUT"


def weight_bytes(model: str) -> int:
    """Bytes of a model's weight files in a folder; 0 for one that is not a local folder."""
    folder = Path(model).expanduser()
    if not folder.is_dir():
        return 0
    sizes = {
        suffix: sum(path.stat().st_size for path in folder.glob(f"*{suffix}")) for suffix in (".safetensors", ".bin")
    }
    return max(sizes.values())


def sync_seconds(size: int) -> float:
    """Seconds for one acknowledgement of new weights of a model of so many bytes."""
    return float(SYNC_TIMEOUT_SECONDS) + SECONDS_PER_GIGABYTE * size / 1e9


def scale(model: str) -> None:
    """Let the limit of a weight sync grow with the model, unless the user has set another one."""
    if os.environ.get(SYNC_VARIABLE, SYNC_TIMEOUT_SECONDS) == SYNC_TIMEOUT_SECONDS:
        os.environ[SYNC_VARIABLE] = f"{sync_seconds(weight_bytes(model)):.0f}"
