"""The guard knows the installed vLLM, sees a changed one, and says so in a sentence."""

import ast
import importlib
import json
import logging
from itertools import accumulate
from pathlib import Path

import pytest
import vllm

import vllm_patches
from vllm_patches import guard, upstream

PACKAGE = Path(vllm_patches.__file__).parent


@pytest.fixture
def fresh_cache():
    guard.problems.cache_clear()
    yield
    guard.problems.cache_clear()


def test_the_lock_holds_on_the_installed_vllm():
    """Outside 0.28 what a feature needs may differ: the feature then refuses to start."""
    elsewhere = () if vllm.__version__.startswith("0.28.") else ("plugin", "cpu_linear", "tandem")
    assert upstream.problems(guard.LOCK, *elsewhere) == []


def test_what_a_package_of_vllm_exports_is_imported_from_there():
    """Files are renamed within a package between releases (`vllm.lora.layers.vocal_parallel_embedding` was)."""
    deeper = [
        f"{file.name}: {name.name} from {node.module}, exported by {package}"
        for file in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vllm.")
        for package in list(accumulate(node.module.split("."), "{}.{}".format))[:-1]
        for name in node.names
        if name.name in getattr(importlib.import_module(package), "__all__", ())
    ]
    assert deeper == []


@pytest.mark.parametrize("symbol", ["CompletionOutput", "NoSuchOutput"])
def test_a_changed_or_missing_symbol_is_refused_by_name_with_the_version(monkeypatch, fresh_cache, tmp_path, symbol):
    lock = tmp_path / "lock.json"
    lock.write_text(json.dumps({"features": {"tandem": {f"vllm.outputs:{symbol}": ["0" * 16]}}}))
    monkeypatch.setattr(guard, "LOCK", lock)
    with pytest.raises(guard.UnsupportedVllmError, match=f"on vLLM {vllm.__version__}.*vllm.outputs:{symbol}"):
        guard.require("tandem")
    guard.problems.cache_clear()
    monkeypatch.setenv(guard.UNTESTED_SWITCH, "1")
    assert len(guard.problems("tandem")) == (symbol == "NoSuchOutput")


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
    from vllm_patches.tandem import runner, scheduler
    from vllm_patches.tandem.speculative import runner as speculative

    for module in (runner, scheduler, speculative):
        assert module.logger.name.startswith("vllm.")
        assert module.logger.getEffectiveLevel() == logging.getLogger("vllm").getEffectiveLevel()
