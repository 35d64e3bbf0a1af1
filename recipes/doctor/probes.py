"""Child processes that look at what may raise, crash or register something when it is imported.

They do what a training worker does: import verl, and let verl find the plug-in by itself.
"""

import importlib
import json
import subprocess
import sys

from recipes.upstream import compat, startup_errors
from vllm_patches import upstream

PLUGIN_MODULE = "recipes.plugin"

_PROBE_SECONDS = 300
_MARK = "verl-duets-probe:"


def run_probe(name: str) -> tuple[dict, str]:
    """Run a probe of this module in a child process; returns (its report, "") or ({}, what went wrong)."""
    return _run_child(f"from recipes.doctor.probes import print_probe; print_probe({name!r})")


def run_import(*modules: str) -> tuple[dict, str]:
    """Import modules in a child process; returns ({}, "") or ({}, what went wrong)."""
    return _run_child(f"import {', '.join(modules)}; print({_MARK!r} + '{{}}')")


def _run_child(code: str) -> tuple[dict, str]:
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=_PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        return {}, f"no answer within {_PROBE_SECONDS} s"
    for line in reversed(done.stdout.splitlines()):
        if line.startswith(_MARK):
            return json.loads(line.removeprefix(_MARK)), ""
    if done.returncode < 0:
        return {}, f"the process was killed by signal {-done.returncode}"
    return {}, last_line(done.stderr) or f"exit code {done.returncode} without a message"


def last_line(text: str) -> str:
    """The last line of a text that is not blank, or an empty string."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def print_probe(name: str) -> None:
    """What a child process runs: one of the probes below, its report as one marked line of JSON on stdout."""
    report = {"verl": probe_verl, "vllm": probe_vllm, "torch": probe_torch}[name]()
    print(f"\n{_MARK}{json.dumps(report)}", flush=True)


def probe_verl() -> dict:
    """Import verl as a worker does, then read what the plug-in registered and what the lock file says."""
    importlib.import_module("verl")
    report = {"loaded": PLUGIN_MODULE in sys.modules, "reason": "", "startup_errors": [], "rows": []}
    report["ledger"] = upstream.problems(compat.LOCK)
    try:
        plugin = importlib.import_module(PLUGIN_MODULE)
    # verl swallowed it, whatever it is; the report carries it.
    except Exception as error:
        report["reason"] = f"verl hid that it cannot be imported: {type(error).__name__}: {error}"
        return report
    if not report["loaded"]:
        report["reason"] = plugin.why_verl_does_not_load_us() or "verl did not load it, for no reason known here"
        return report
    registry = importlib.import_module("recipes.doctor.registry")
    report["startup_errors"] = startup_errors.messages
    report["rows"] = [
        {
            "kind": state.row.kind,
            "name": state.row.name,
            "ok": state.ok,
            "detail": state.detail,
            "trace": plugin.errors.get(state.row, ""),
        }
        for state in registry.check()
    ]
    return report


def probe_vllm() -> dict:
    """Import vLLM and compare its symbols with our lock file of it."""
    from vllm_patches import guard

    return {"problem": guard.version_problem(), "ledger": upstream.problems(guard.LOCK)}


def probe_torch() -> dict:
    """Which accelerators torch sees, and where there are none, why."""
    import torch

    from recipes.platforms.nvidia import why_unusable

    devices = []
    if torch.cuda.is_available():
        devices = [
            f"{device.name}, {device.total_memory / 2**30:.0f} GiB"
            for device in map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
        ]
    elif torch.accelerator.is_available():
        devices = [f"{torch.accelerator.device_count()} x {torch.accelerator.current_accelerator()}"]
    why_not = "" if devices else why_unusable()
    return {"devices": devices, "cuda": torch.version.cuda, "version": torch.__version__, "why_not": why_not}
