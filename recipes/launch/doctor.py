"""Check whether this environment, or every node of a Ray cluster, can run the recipes.

    python -m recipes.launch.doctor [--quick] [--json] [--ray]

Versions and names are answered within about a second; what has to import verl, vLLM and torch follows, in processes of
its own. `--quick` stops after the first part. Exit code 0 only if nothing failed. A notice (no accelerator, no
flash-attn) fails nothing: recipes run, differently. `--ray` joins the cluster named by RAY_ADDRESS, or the one running
on this machine, and examines every live node of it; it never starts one.
"""

import argparse
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from recipes import plugin
from recipes.core import compat, nvidia, own_log
from recipes.core.vllm_distribution import vllm_known_by_either_name
from recipes.plugin import KINDS, TABLE, Row, dotted_path, load
from vllm_patches import guard, upstream

OK, NOTICE, FAILURE = "ok", "notice", "failure"
OWN = "verl-duets"
CHILD_SECONDS, NODE_SECONDS = 300, 600
# Below this much shared memory verl's weight buckets do not fit; 64 MiB is the default of container runtimes.
SMALL_SHARED_MEMORY_GIB = 1.0
LIBRARIES = {name: name for name in ("torchvision", "torchaudio", "torchcodec")} | {
    "flash-attn": "flash_attn.bert_padding"
}
MARK = "verl-duets-doctor:"


class Finding(NamedTuple):
    """One thing looked at.

    Attributes:
        state: "ok", "notice" (works, worth knowing) or "failure" (a recipe would not run, or not as tested).
    """

    area: str
    item: str
    state: str
    detail: str
    remedy: str = ""


def quick_findings() -> Iterator[Finding]:
    """What needs no import of verl, vLLM or torch."""
    yield _version("python", platform.python_version(), compat.TESTED_PYTHON)
    for name, tested in compat.TESTED_VERSIONS.items():
        yield _version(name, compat.installed_version(name), tested)
    if compat.installed_version("vllm") is None and compat.installed_version("sglang") is not None:
        yield Finding("versions", "vllm", NOTICE, "not installed: a run that decodes with it needs it")
    else:
        yield _version("vllm", compat.installed_version("vllm"), guard.SUPPORTED_VERSIONS)
    yield _version(OWN, compat.installed_version(OWN), ">=0")
    owners = importlib.metadata.packages_distributions()
    for name in ("recipes", "reward_fns", "vllm_patches"):
        places = _places(name)
        others = {owner for owner in owners.get(name, []) if owner.lower().replace("_", "-") != OWN}
        if others:
            remedy = f"pip uninstall {' '.join(others)}; pip install --force-reinstall --no-deps {OWN}"
            yield Finding("packages", name, FAILURE, f"{', '.join(others)} also installs a package `{name}`", remedy)
        elif len(places) != 1:
            listed = ", ".join(map(str, places)) or "none"
            yield Finding("packages", name, FAILURE, f"one copy must be on the path, found {listed}", "keep one")
        else:
            yield Finding("packages", name, OK, str(places[0]))
    if problem := compat.trl_problem():
        yield Finding("packages", "trl", FAILURE, problem)
    if reason := plugin.plugin_problem():
        yield Finding("plug-in", plugin.ENTRY_POINT, FAILURE, reason, "until it loads, verl knows none of our names")
    points = {point.name for point in importlib.metadata.entry_points(group="vllm.general_plugins")}
    allowed = os.environ.get("VLLM_PLUGINS")
    if plugin.ENTRY_POINT not in points:
        yield Finding("plug-in", "vllm", FAILURE, "no entry point of group vllm.general_plugins", "pip install -e .")
    elif allowed is not None and plugin.ENTRY_POINT not in allowed.split(","):
        yield Finding("plug-in", "vllm", FAILURE, f"switched off by VLLM_PLUGINS={allowed}", "unset it")


def _version(name: str, version: str | None, tested: str) -> Finding:
    if version is not None and compat.in_range(version, tested):
        return Finding("versions", name, OK, f"{version} (tested: {tested})")
    if version is not None and compat.in_range(version, compat.NOTED_VERSIONS.get(name, "<0")):
        return Finding(
            "versions", name, NOTICE, f"{version}: taken by verl's own extras, not tested here ({tested} is)"
        )
    return Finding("versions", name, FAILURE, f"{version}, tested: {tested}", f"pip install '{name}{tested}'")


def _places(name: str) -> list[Path]:
    """Every folder on the import path that holds a package of this name, the one that is imported first."""
    spec = importlib.util.find_spec(name)
    folders = [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
    folders += [Path(entry or os.curdir) / name for entry in sys.path]
    return list(dict.fromkeys(place.resolve() for place in folders if (place / "__init__.py").is_file()))


FIND: dict[str, Callable[[Any, str], object]] = {
    "platform": lambda registry, name: registry.PlatformRegistry.get(name),
    "adv_estimator": lambda registry, name: registry.ADV_ESTIMATOR_REGISTRY.get(name),
    "policy_loss": lambda registry, name: registry.POLICY_LOSS_REGISTRY.get(name),
    "trainer": lambda registry, name: registry.trainer_base.TRAINER_REGISTRY.get(name),
    "reward_manager": lambda registry, name: registry.registry.REWARD_MANAGER.get(name),
    "agent_loop": lambda registry, name: registry._agent_loop_registry.get(name, {}).get("_target_"),
    "rollout_adapter": lambda registry, name: registry._ROLLOUT_REGISTRY.get((name, "async")),
    "rollout_replica": lambda registry, name: registry.RolloutReplicaRegistry._registry.get(name, lambda: None)(),
}
# Registries that hold a dotted name and import it at first use.
KEPT_AS_TEXT = ("agent_loop", "rollout_adapter")


def lost_rows(rows: Iterable[Row] = TABLE) -> dict[Row, str]:
    """Rows of the plug-in's table that verl's live registries of this process do not hold, and why (imports verl)."""
    return {row: problem for row in rows if (problem := _row_problem(row))}


def _row_problem(row: Row) -> str | None:
    try:
        if reason := plugin.plugin_problem():
            return reason
        with vllm_known_by_either_name():
            registry = importlib.import_module(KINDS[row.kind].module)
            plugin.activate([row])
            if row in plugin.errors:
                return _last_line(plugin.errors[row])
            registered = FIND[row.kind](registry, row.name)
            expected = dotted_path(row.target) if row.kind in KEPT_AS_TEXT else load(row.target)
    # A target may raise anything while it is imported; the row is off and says why.
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None if registered == expected else f"verl's registry has {registered!r}, not {row.target}"


def verl_findings() -> Iterator[Finding]:
    """What the plug-in put into verl in this process, and whether it was read against this verl."""
    lost: dict[str, list[str]] = {}
    for row, problem in lost_rows().items():
        lost.setdefault(_last_line(problem), []).append(f"{row.kind} {row.name}")
    # verl imports libraries that it does not install and vLLM does.
    brought = compat.installed_version("vllm") is None
    for text in (*own_log.messages, *(f"{', '.join(rows)}: {problem}" for problem, rows in lost.items())):
        remedy = "install vLLM first: it brings what verl imports" if brought and "No module named" in text else ""
        yield Finding("plug-in", "verl", FAILURE, _last_line(text), remedy)
    if not lost:
        yield Finding("plug-in", "verl", OK, f"knows all {len(TABLE)} names")
    yield from _lock_findings("verl", compat.LOCK)


def vllm_findings() -> Iterator[Finding]:
    """Whether vLLM can be imported, and is one that the decoder was read against."""
    if problem := guard.version_problem():
        yield Finding("vllm", "version", FAILURE, problem)
    yield from _lock_findings("vllm", guard.LOCK)


def _lock_findings(name: str, lock: Path) -> Iterator[Finding]:
    problems = upstream.problems(lock)
    for problem in problems:
        yield Finding("lock file", name, FAILURE, problem, f"install a tested version of {name}")
    if not problems:
        yield Finding("lock file", name, OK, "every symbol is as known")


def machine_findings() -> Iterator[Finding]:
    """Accelerators as torch sees them, and shared memory."""
    import torch

    if torch.accelerator.is_available():
        accelerators = f"{torch.accelerator.device_count()} x {torch.accelerator.current_accelerator()}"
        yield Finding("machine", "accelerator", OK, accelerators)
    elif (problem := nvidia.unusable()) and os.environ.get("VERL_PLATFORM", "").strip().lower() != "cpu":
        yield Finding("machine", "accelerator", FAILURE, problem, "trainer.device=cpu runs a recipe on the processor")
    else:
        yield Finding("machine", "accelerator", NOTICE, "none: the recipes run on the CPU platform (scale=toy)")
    if (free := shutil.disk_usage("/dev/shm").free / 2**30) < SMALL_SHARED_MEMORY_GIB:
        yield Finding("machine", "/dev/shm", NOTICE, f"{free:.1f} GiB free", "docker run --shm-size=16g")


def slow_findings() -> Iterator[Finding]:
    """What has to be imported, in child processes, two at a time."""
    answers = "from recipes.launch import doctor; doctor.answer({!r})"
    loaded = "import sys, verl; assert 'recipes.plugin' in sys.modules, 'verl did not load the plug-in'; "
    codes = {"machine": answers.format("machine"), "verl": loaded + answers.format("verl")}
    if compat.installed_version("vllm"):
        codes["vllm"] = answers.format("vllm")
    # Compiled libraries that break imports when they were built for another torch; nothing here needs them.
    installed = [name for name in LIBRARIES if compat.installed_version(name)]
    codes |= {name: f"import {LIBRARIES[name]}" for name in installed}
    with ThreadPoolExecutor(max_workers=2) as pool:
        for name, (findings, problem) in zip(codes, pool.map(_child, codes.values()), strict=True):
            yield from findings
            if problem and name == "flash-attn":
                yield Finding("imports", name, NOTICE, f"attention runs on sdpa: {problem}", f"pip uninstall {name}")
            else:
                state, detail = (FAILURE, problem) if problem else (OK, "can be imported")
                remedy = f"pip uninstall {name}: nothing here needs it" if problem and name in LIBRARIES else ""
                yield Finding("imports", name, state, detail, remedy)
    if "flash-attn" not in installed:
        yield Finding("imports", "flash-attn", NOTICE, "not installed: attention runs on sdpa")


def answer(name: str) -> None:
    """What a child process runs: print the findings of one of the functions above as a marked line of JSON."""
    findings = {"verl": verl_findings, "vllm": vllm_findings, "machine": machine_findings}[name]()
    print(f"\n{MARK}{json.dumps(list(findings))}", flush=True)


def _child(code: str) -> tuple[list[Finding], str]:
    """Findings that code prints in a process of its own, and why it ended badly."""
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=CHILD_SECONDS)
    except subprocess.TimeoutExpired:
        return [], f"no answer within {CHILD_SECONDS} s"
    lines = [line.removeprefix(MARK) for line in done.stdout.splitlines() if line.startswith(MARK)]
    problem = _last_line(done.stderr) or f"exit code {done.returncode}"
    if done.returncode < 0:
        problem = f"killed by signal {-done.returncode}"
    return [Finding(*row) for line in lines for row in json.loads(line)], problem if done.returncode else ""


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def survey(quick: bool = False) -> list[Finding]:
    """The findings of this machine; a check that breaks is itself one, and the others still report."""
    findings_so_far: list[Finding] = []
    for findings in (quick_findings,) if quick else (quick_findings, slow_findings):
        try:
            findings_so_far.extend(findings())
        except Exception as error:
            findings_so_far.append(Finding("doctor", findings.__name__, FAILURE, f"{type(error).__name__}: {error}"))
    return findings_so_far


def survey_nodes() -> dict[str, list[Finding]]:
    """The findings of every live node of the running Ray cluster, and how their versions differ."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # A nested function travels by value, so that a node without this package answers with the ImportError it has.
    def examine() -> list[tuple]:
        return [tuple(finding) for finding in importlib.import_module("recipes.launch.doctor").survey()]

    address = os.environ.get("RAY_ADDRESS") or "auto"
    try:
        if address == "local" or address.startswith(("http://", "https://")):
            raise ConnectionError("RAY_ADDRESS must be auto, host:port or ray://host:port of a running cluster")
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except ConnectionError as error:
        return {"cluster": [Finding("cluster", address, FAILURE, f"cannot be joined: {_last_line(str(error))}")]}
    nodes: dict[str, list[Finding]] = {}
    try:
        remote = ray.remote(num_cpus=0, max_retries=0)(examine)
        for node in ray.nodes():
            if node["Alive"]:
                here = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                name = f"{node['NodeManagerAddress']} ({node['NodeID'][:8]})"
                nodes[name] = remote.options(scheduling_strategy=here).remote()
        for name, reference in nodes.items():
            try:
                nodes[name] = [Finding(*row) for row in ray.get(reference, timeout=NODE_SECONDS)]
            except ray.exceptions.RayError as error:
                remedy = "install the same verl-duets on every node"
                nodes[name] = [Finding("node", "answer", FAILURE, _last_line(str(error)), remedy)]
    finally:
        ray.shutdown()
    return {**nodes, "cluster": compare_nodes(nodes)}


def compare_nodes(nodes: dict[str, list[Finding]]) -> list[Finding]:
    """Whether every version is the same on all nodes."""
    seen: dict[str, dict[str, list[str]]] = {}
    for node, findings in nodes.items():
        for finding in findings:
            if finding.area == "versions":
                seen.setdefault(finding.item, {}).setdefault(finding.detail.split()[0].rstrip(":,"), []).append(node)
    return [
        Finding("cluster", item, FAILURE, "; ".join(f"{one} on {', '.join(where)}" for one, where in versions.items()))
        for item, versions in seen.items()
        if len(versions) > 1
    ] or [Finding("cluster", "versions", OK, "the same on every node")]


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m recipes.launch.doctor", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="only what needs no import of verl, vLLM or torch")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("--ray", action="store_true", help="examine every node of the running Ray cluster")
    options = parser.parse_args(arguments)
    if not options.quick:
        print("doctor: importing verl, vLLM and torch, about half a minute ...", file=sys.stderr, flush=True)
    nodes = survey_nodes() if options.ray else {"this machine": survey(options.quick)}
    states = [finding.state for findings in nodes.values() for finding in findings]
    ok = FAILURE not in states
    if options.json:
        rows = {name: [finding._asdict() for finding in findings] for name, findings in nodes.items()}
        print(json.dumps({"ok": ok, "nodes": rows}, indent=2))
        return 0 if ok else 1
    for name, findings in nodes.items():
        print(name)
        for finding in findings:
            print(
                f"  {finding.state:8}{finding.area:10} {finding.item}: {finding.detail}"
                + (f" -> {finding.remedy}" if finding.remedy else "")
            )
    print("All is well." if ok else f"Not fit to run. Failures: {states.count(FAILURE)}.")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
