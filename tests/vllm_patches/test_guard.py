"""The guard knows the installed vLLM, sees a changed one, and says so in a sentence."""

import ast
import importlib
import logging
from itertools import accumulate
from pathlib import Path

import pytest

pytest.importorskip("vllm")

import vllm  # noqa: E402

import vllm_patches  # noqa: E402
from vllm_patches import guard, upstream  # noqa: E402
from vllm_patches.upstream import Digest, Fields, Signature, Source, Symbol  # noqa: E402

PATCHES = Path(vllm_patches.__file__).with_name("PATCHES.md")


@pytest.fixture
def fresh_cache():
    guard.problems.cache_clear()
    yield
    guard.problems.cache_clear()


def test_every_symbol_of_the_installed_vllm_is_as_expected():
    parts = set(guard.LEDGER)
    if not vllm.__version__.startswith("0.28."):
        # Written on 0.28; elsewhere what needs these refuses to start where a symbol differs.
        parts -= {"speculative", "shared_weights", "lazy_adapters"}
    assert [state for state in guard.audit(parts) if not state.ok] == []


def test_the_ledger_in_prose_and_the_ledger_in_code_name_the_same_symbols():
    written = {
        cell.strip("`")
        for line in PATCHES.read_text().splitlines()
        for cell in [line.split("|")[1].strip() if line.startswith("| `") else ""]
        if cell
    }
    assert written == {symbol.name for symbols in guard.LEDGER.values() for symbol in symbols}


def test_what_a_package_of_vllm_exports_is_imported_from_there():
    """Files are renamed within a package between releases (`vllm.lora.layers.vocal_parallel_embedding` was)."""
    deeper = [
        f"{file.name}: {name.name} from {node.module}, exported by {package}"
        for file in PATCHES.parent.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vllm.")
        for package in list(accumulate(node.module.split("."), "{}.{}".format))[:-1]
        for name in node.names
        if name.name in getattr(importlib.import_module(package), "__all__", ())
    ]
    assert deeper == []


@pytest.mark.parametrize(
    ("symbol", "expected", "status"),
    [
        ("vllm.outputs:NoSuchOutput", Fields("index"), "missing"),
        ("vllm.no_such_module:thing", Fields("index"), "missing"),
        ("vllm.outputs:CompletionOutput", Fields("index no_such_field"), "changed"),
        ("vllm.outputs:CompletionOutput.finished", Signature("self now"), "changed"),
        ("vllm.outputs:CompletionOutput.finished", Signature("self"), "ok"),
        ("vllm.outputs:CompletionOutput.finished", Source("return self.finish_reason is not  None"), "ok"),
        ("vllm.outputs:CompletionOutput.finished", Source("return self.done"), "changed"),
        ("vllm.outputs:CompletionOutput.finished", Digest("0" * 16), "changed"),
        ("builtins:print", Source("print"), "changed"),
    ],
)
def test_a_difference_is_seen(symbol, expected, status):
    (state,) = upstream.audit({"test": (Symbol(symbol, "", expected),)})
    assert (state.status, state.ok) == (status, status == "ok")


def test_a_patched_symbol_is_judged_by_what_lies_beneath():
    vllm_patches.register()
    state = next(state for state in guard.audit(["plugin"]) if state.symbol.endswith("use_v2_model_runner"))
    assert state.status == "ok" and "patched" in state.detail


def test_a_symbol_of_the_cpu_engine_is_not_looked_at_on_another_platform(monkeypatch):
    monkeypatch.setattr("vllm.platforms.current_platform.is_cpu", lambda: False, raising=False)
    (state,) = upstream.audit({"test": (Symbol("vllm.no_such_module:thing", "", needs="vllm on a CPU"),)})
    assert (state.status, state.ok) == ("unused", True)


def test_a_changed_symbol_is_refused_by_name(monkeypatch, fresh_cache):
    changed = Symbol("vllm.outputs:CompletionOutput", "", Fields("vanished"))
    monkeypatch.setattr(guard, "LEDGER", {"tandem": (changed,)})
    with pytest.raises(guard.UnsupportedVllmError, match="vllm.outputs:CompletionOutput is changed.*vanished"):
        guard.require("tandem")


@pytest.mark.parametrize("version", ["0.23.9", "0.32.0", "1.0.0", "not-a-version"])
def test_an_unknown_version_is_refused(monkeypatch, fresh_cache, version):
    monkeypatch.setattr("vllm.__version__", version)
    with pytest.raises(guard.UnsupportedVllmError, match=version):
        guard.require("plugin")
    guard.problems.cache_clear()
    monkeypatch.setenv(guard.UNTESTED_SWITCH, "1")
    guard.require("plugin")


@pytest.mark.parametrize("version", ["0.24.0", "0.28.0", "0.28.0+cpu", "0.28.1rc1", "0.31.0"])
def test_a_known_version_is_accepted(monkeypatch, fresh_cache, version):
    monkeypatch.setattr("vllm.__version__", version)
    assert guard.version_problem() is None


def test_what_a_tandem_engine_says_at_its_start_is_printed_by_vllm():
    """vLLM gives a handler, and its level, to loggers under its own name only."""
    pytest.importorskip("vllm")
    from vllm_patches.tandem import runner, scheduler
    from vllm_patches.tandem.speculative import runner as speculative

    for module in (runner, scheduler, speculative):
        assert module.logger.name.startswith("vllm.")
        assert module.logger.getEffectiveLevel() == logging.getLogger("vllm").getEffectiveLevel()
