"""Examine one machine as a training process sees it: the findings that `recipes.doctor` reports."""

import ast
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from recipes import plugin
from recipes.doctor.probes import PLUGIN_MODULE, last_line, run_import, run_probe
from recipes.platforms import nvidia
from recipes.upstream import compat

OK, NOTICE, FAILURE = "ok", "notice", "failure"

OWN_PACKAGES = ("recipes", "reward_fns", "vllm_patches")
OWN_DISTRIBUTION = "verl-duets"
# Below this much shared memory verl's weight buckets do not fit; 64 MiB is the default of container runtimes.
SMALL_SHARED_MEMORY_GIB = 1.0


@dataclass(frozen=True)
class Finding:
    """One thing looked at.

    Attributes:
        state: "ok", "notice" (works, worth knowing) or "failure" (a recipe would not run, or not as tested).
        trace: the traceback behind a failure, where there is one.
    """

    section: str
    item: str
    state: str
    detail: str
    remedy: str = ""
    trace: str = ""


Check = Callable[[], Iterator[Finding]]


def quick_survey() -> list[Finding]:
    """Examine what needs no import of verl, vLLM or torch: versions, packages, names. Never raises; about a second."""
    checks: tuple[Check, ...] = (check_versions, check_rollout_engine, check_copies, check_names)
    return [finding for check in checks for finding in _findings_of(check)]


def slow_survey(announce: Callable[[str], None] = lambda line: None) -> list[Finding]:
    """Examine what has to be imported, in child processes, two at a time; never raises, about a quarter of a minute.

    `announce` gets a line as each check ends.
    """
    checks: tuple[Check, ...] = (check_plugin, check_vllm, check_machine, check_optional_libraries)

    def examine(check: Check) -> list[Finding]:
        started = time.monotonic()
        found = _findings_of(check)
        failures = sum(finding.state == FAILURE for finding in found)
        seconds = time.monotonic() - started
        announce(f"{check.__name__.removeprefix('check_').replace('_', ' ')}: {failures} failures ({seconds:.0f} s)")
        return found

    with ThreadPoolExecutor(max_workers=2) as pool:
        return [finding for found in pool.map(examine, checks) for finding in found]


def survey() -> list[Finding]:
    """Examine this machine, the quick checks and the slow ones; never raises."""
    return quick_survey() + slow_survey()


def _findings_of(check: Check) -> list[Finding]:
    try:
        return list(check())
    # A check that breaks is itself a finding; the others still have to report.
    except Exception as error:
        return [Finding("doctor", check.__name__, FAILURE, f"{type(error).__name__}: {error}")]


def check_versions() -> Iterator[Finding]:
    """Python and the distributions of `compat.TESTED_VERSIONS` against their tested ranges."""
    python = platform.python_version()
    known = compat.in_range(python, compat.TESTED_PYTHON)
    yield Finding(
        "versions", "python", OK if known else FAILURE, python, "" if known else f"use Python {compat.TESTED_PYTHON}"
    )
    for name, tested in compat.TESTED_VERSIONS.items():
        yield _version_finding(name, compat.installed_version(name), tested)
    own = compat.installed_version(OWN_DISTRIBUTION)
    if own is None:
        yield Finding(
            "versions", OWN_DISTRIBUTION, FAILURE, "not installed, so verl cannot find the plug-in", "pip install -e ."
        )
    else:
        yield Finding("versions", OWN_DISTRIBUTION, OK, own)


def _version_finding(name: str, version: str | None, tested: str) -> Finding:
    remedy = f"pip install '{name}{tested}'"
    if version is None:
        return Finding("versions", name, FAILURE, f"not installed; tested: {tested}", remedy)
    if compat.in_range(version, tested):
        return Finding("versions", name, OK, f"{version} (tested: {tested})")
    if compat.in_range(version, compat.NOTED_VERSIONS.get(name, "<0")):
        return Finding(
            "versions", name, NOTICE, f"{version}: taken by verl's own extras, not tested here ({tested} is)"
        )
    return Finding("versions", name, FAILURE, f"{version} is not among the tested versions {tested}", remedy)


def check_rollout_engine() -> Iterator[Finding]:
    """An engine to roll out with: a tested vLLM, or sglang (with which every recipe but tandem can run)."""
    from vllm_patches.guard import SUPPORTED_VERSIONS

    vllm, sglang = compat.installed_version("vllm"), compat.installed_version("sglang")
    if vllm is not None:
        yield _version_finding("vllm", vllm, SUPPORTED_VERSIONS)
    elif sglang is not None:
        yield Finding("versions", "vllm", NOTICE, "not installed: only tandem and the toy scale need it")
    else:
        install = "pip install 'verl-duets[gpu]', or 'verl-duets[cpu]' without an accelerator"
        yield Finding(
            "versions", "vllm", FAILURE, "neither vLLM nor sglang is installed: nothing can roll out", install
        )
    if sglang is not None:
        yield Finding("versions", "sglang", NOTICE, f"{sglang}: through verl's own rollout, not tested here")


def check_copies() -> Iterator[Finding]:
    """Each top-level package of ours exists once on the path, so that driver and workers import the same one."""
    owners = importlib.metadata.packages_distributions()
    for name in OWN_PACKAGES:
        places = _places(name)
        others = sorted(
            {owner for owner in owners.get(name, []) if owner.lower().replace("_", "-") != OWN_DISTRIBUTION}
        )
        if others:
            detail = f"{', '.join(others)} also installs a top-level package `{name}`"
            remedy = f"pip uninstall {' '.join(others)}; pip install --force-reinstall --no-deps {OWN_DISTRIBUTION}"
            yield Finding("packages", name, FAILURE, detail, remedy)
        elif len(places) > 1:
            detail = f"{len(places)} copies on the path: {', '.join(map(str, places))}"
            yield Finding("packages", name, FAILURE, detail, "keep one: uninstall the other or leave its folder")
        elif not places:
            yield Finding("packages", name, FAILURE, "not found on the path", "pip install -e .")
        else:
            yield Finding("packages", name, OK, str(places[0]))


def _places(name: str) -> list[Path]:
    """Every folder on the import path that holds a package of this name, the one that is imported first."""
    spec = importlib.util.find_spec(name)
    found = [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
    found += [Path(entry or os.curdir) / name for entry in sys.path]
    return list(dict.fromkeys(place.resolve() for place in found if (place / "__init__.py").is_file()))


def check_names() -> Iterator[Finding]:
    """Every name of the plug-in's table leads to a file that defines it; nothing is imported."""
    lost = [(row, problem) for row in plugin.TABLE if (problem := _undefined(row.target))]
    for row, problem in lost:
        yield Finding("names", row.name, FAILURE, problem, "pip install --force-reinstall --no-deps verl-duets")
    if not lost:
        yield Finding("names", "table", OK, f"{len(plugin.TABLE)} names, each defined where the table says")
    if reason := plugin.why_verl_does_not_load_us():
        yield Finding("names", plugin.ENTRY_POINT, FAILURE, reason, "until it loads, verl knows none of our names")


def _undefined(target: str) -> str | None:
    """Why "module:attribute" cannot be right, read from the source; None when the module defines the attribute."""
    module, _, attribute = target.partition(":")
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.origin is None:
        return f"{module} is missing"
    body = ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body
    kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    if any(isinstance(node, kinds) and node.name == attribute for node in body):
        return None
    return f"{module} does not define {attribute}"


def check_plugin() -> Iterator[Finding]:
    """Whether a process that imports verl gets the plug-in, all of its table, and the verl symbols it relies on."""
    report, problem = run_probe("verl")
    if problem:
        yield Finding(
            "plug-in", "import verl", FAILURE, problem, "repair the installation of verl and its dependencies"
        )
        return
    if report["loaded"]:
        yield Finding("plug-in", PLUGIN_MODULE, OK, "loaded by `import verl`")
    else:
        yield Finding(
            "plug-in", PLUGIN_MODULE, FAILURE, report["reason"], "until it loads, verl knows none of our names"
        )
    for trace in report["startup_errors"]:
        yield Finding("plug-in", "start-up", FAILURE, last_line(trace), trace=trace)
    for row in report["rows"]:
        state = OK if row["ok"] else FAILURE
        yield Finding(f"registry: {row['kind']}", row["name"], state, row["detail"], trace=row["trace"])
    yield from _lock_findings("verl lock", report["ledger"], f"pip install 'verl{compat.TESTED_VERSIONS['verl']}'")


def check_vllm() -> Iterator[Finding]:
    """Our vLLM entry point, and the vLLM symbols the tandem decoder and the CPU patch rely on."""
    if compat.installed_version("vllm") is None:
        return
    allowed = os.environ.get("VLLM_PLUGINS")
    names = [point.name for point in _entry_points("vllm.general_plugins", "vllm_patches")]
    if not names:
        yield Finding(
            "plug-in", "vllm_patches", FAILURE, "no entry point of group vllm.general_plugins", "pip install -e ."
        )
    elif allowed is not None and not set(names) & _listed(allowed):
        detail = f"switched off by VLLM_PLUGINS={allowed}"
        yield Finding("plug-in", "vllm_patches", FAILURE, detail, f"unset it, or add {names[0]} to it")
    else:
        yield Finding("plug-in", "vllm_patches", OK, "an entry point of group vllm.general_plugins")
    report, problem = run_probe("vllm")
    if problem:
        yield Finding("vllm lock", "import vllm", FAILURE, problem, "repair the installation of vLLM")
        return
    if report["problem"]:
        yield Finding("vllm lock", "version", FAILURE, report["problem"])
    yield from _lock_findings("vllm lock", report["ledger"], "install a vLLM that the lock file knows")


def _lock_findings(section: str, problems: list[str], remedy: str) -> Iterator[Finding]:
    for problem in problems:
        symbol, _, detail = problem.partition(" ")
        yield Finding(section, symbol, FAILURE, detail, remedy)
    if not problems:
        yield Finding(section, "upstream.lock.json", OK, "every symbol is as known")


def check_machine() -> Iterator[Finding]:
    """Accelerators as torch sees them, and shared memory."""
    report, problem = run_probe("torch")
    if problem:
        yield Finding("machine", "import torch", FAILURE, problem, "repair the installation of torch")
        return
    if report["devices"]:
        yield Finding("machine", "accelerator", OK, ", ".join(report["devices"]))
    elif (driver := nvidia.nvidia_driver()) and os.environ.get("VERL_PLATFORM", "").strip().lower() != "cpu":
        detail = (
            f"this machine has NVIDIA devices ({driver}) that torch {report['version']} cannot use: {report['why_not']}"
        )
        remedy = (
            "a driver that knows this torch's CUDA, or a torch built for this driver's; trainer.device=cpu runs a "
            "recipe on the processor"
        )
        yield Finding("machine", "accelerator", FAILURE, detail, remedy)
    elif report["cuda"] is None and shutil.which("nvidia-smi"):
        detail = "this machine has nvidia-smi, but torch is a build without CUDA: everything would run on the CPU"
        yield Finding(
            "machine", "accelerator", NOTICE, detail, "pip install 'verl-duets[gpu]' with a CUDA build of torch"
        )
    else:
        yield Finding("machine", "accelerator", NOTICE, "none: the recipes run on the CPU platform (scale=toy)")
    try:
        free = shutil.disk_usage("/dev/shm").free / 2**30
    except OSError:
        yield Finding("machine", "/dev/shm", NOTICE, "absent: weights travel to the rollout engine through it")
        return
    detail = f"{free:.1f} GiB free"
    if free < SMALL_SHARED_MEMORY_GIB:
        yield Finding("machine", "/dev/shm", NOTICE, detail, "give a container more: docker run --shm-size=16g")
    else:
        yield Finding("machine", "/dev/shm", OK, detail)


def check_optional_libraries() -> Iterator[Finding]:
    """Compiled libraries that break imports when they were built for another torch."""
    if compat.installed_version("flash-attn") is None:
        yield Finding("libraries", "flash-attn", NOTICE, "not installed: the recipes use sdpa attention")
    else:
        _, problem = run_import("flash_attn", "flash_attn.bert_padding")
        detail = f"cannot be imported, the recipes use sdpa attention: {problem}" if problem else "importable"
        remedy = "pip uninstall flash-attn, or build it against the installed torch" if problem else ""
        yield Finding("libraries", "flash-attn", NOTICE if problem else OK, detail, remedy)
    for name in ("torchvision", "torchaudio", "torchcodec"):
        if compat.installed_version(name) is None:
            yield Finding("libraries", name, OK, "not installed, not needed")
            continue
        _, problem = run_import(name)
        remedy = f"nothing here needs it: pip uninstall {name}" if problem else ""
        detail = f"breaks on import, and takes verl or vLLM down with it: {problem}" if problem else "importable"
        yield Finding("libraries", name, FAILURE if problem else OK, detail, remedy)
    if problem := compat.trl_problem():
        found, _, remedy = problem.partition("; ")
        yield Finding("libraries", "trl", FAILURE, found, remedy)
    else:
        version = compat.installed_version("trl")
        yield Finding("libraries", "trl", OK, version or "not installed: the extra dpo of step_ppo needs it")


def _entry_points(group: str, package: str) -> list[importlib.metadata.EntryPoint]:
    return [point for point in importlib.metadata.entry_points(group=group) if point.module.split(".")[0] == package]


def _listed(text: str) -> set[str]:
    return {part.strip() for part in text.split(",") if part.strip()}


def as_rows(findings: list[Finding]) -> list[dict[str, str]]:
    """Findings as plain dictionaries, for JSON and for the way back from another machine."""
    return [asdict(finding) for finding in findings]
