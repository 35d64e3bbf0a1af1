"""The verl ledger: its rows hold on the installed verl, and a changed upstream is refused."""

import importlib.util
import os
import sys
import types
from pathlib import Path

import pytest

from recipes.upstream import compat
from recipes.upstream.ledger import LEDGER
from vllm_patches.upstream import Digest, Signature, Symbol, beneath_patches, resolve

ROOT = Path(__file__).resolve().parents[3]


def audit_of(*symbols):
    return compat.audit({"a.py": symbols})


@pytest.fixture
def upstream(monkeypatch):
    """A module that plays an upstream one, so that it can change."""
    module = types.ModuleType("upstream_module")
    monkeypatch.setitem(sys.modules, "upstream_module", module)
    return module


def test_every_row_holds_on_the_installed_verl():
    assert [state for state in compat.audit() if not state.ok] == []


def test_every_row_says_why_and_which_file_relies_on_it():
    for file, symbols in LEDGER.items():
        assert (ROOT / file).is_file()
        for symbol in symbols:
            assert ":" in symbol.name and symbol.why


def test_a_changed_signature_is_off(upstream):
    upstream.step = lambda batch, metrics, extra: None
    (state,) = audit_of(Symbol("upstream_module:step", "called", Signature("batch metrics")))
    assert not state.ok
    assert "expected (batch, metrics), found (batch, metrics, extra)" in state.detail


def test_a_missing_symbol_and_a_missing_module_are_off(upstream):
    rows = [Symbol("upstream_module:gone", "called"), Symbol("no_such_module:step", "called")]
    assert [state.ok for state in audit_of(*rows)] == [False, False]


def test_a_module_that_raises_when_imported_is_off(tmp_path, monkeypatch):
    (tmp_path / "raising_upstream.py").write_text("raise OSError('libtorchcodec.so')")
    monkeypatch.syspath_prepend(str(tmp_path))
    (state,) = audit_of(Symbol("raising_upstream:step", "called"))
    assert not state.ok
    assert "libtorchcodec.so" in state.detail


def test_a_row_that_needs_vllm_is_not_looked_at_without_it(monkeypatch):
    present = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *args: name != "vllm" and present(name, *args) or None)
    (state,) = audit_of(Symbol("no_such_module:step", "called", needs="vllm"))
    assert state.ok
    assert "vllm is not installed" in state.detail


def test_an_audit_leaves_the_environment_as_it_found_it(tmp_path, monkeypatch):
    (tmp_path / "loud_upstream.py").write_text(
        "import os\nos.environ.update(LOUD_UPSTREAM='1', TOKENIZERS_PARALLELISM='true')\nstep = print\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    (state,) = audit_of(Symbol("loud_upstream:step", "called"))
    assert state.ok and "LOUD_UPSTREAM" not in os.environ and os.environ["TOKENIZERS_PARALLELISM"] == "false"


def test_no_run_looks_at_what_only_the_supervised_start_imports():
    files = compat.files_of("pasodoble")
    assert compat.SUPERVISED_START not in files and "recipes/common/grouped_trainer.py" in files
    assert compat.SUPERVISED_START in LEDGER


def test_the_digest_sees_code_and_neither_comments_nor_docstrings(tmp_path, monkeypatch):
    (tmp_path / "digest_cases.py").write_text(
        "def plain(x):\n    return x + 1\n\n"
        'class Holder:\n    def plain(x):\n        """Documented."""\n        # commented\n        return x + 1\n\n'
        "    class Other:\n        def plain(x):\n            return x + 2\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    plain, method, other = (
        Digest.of(resolve(f"digest_cases:{path}")) for path in ("plain", "Holder.plain", "Holder.Other.plain")
    )
    assert plain == method
    assert plain != other


def test_a_known_digest_passes_and_an_unknown_one_does_not():
    symbol = "verl.trainer.ppo.core_algos:agg_loss"
    known = Digest.of(beneath_patches(resolve(symbol))).accepted
    rows = [Symbol(symbol, "body", Digest(f"{'0' * 16} {known}")), Symbol(symbol, "body", Digest("0" * 16))]
    assert [state.ok for state in audit_of(*rows)] == [True, False]


def test_a_printed_row_passes_when_pasted():
    text = compat.row_for("verl.trainer.ppo.v1.trainer_base:PPOTrainer._compute_advantage")
    row = eval(text.strip().rstrip(","), {"Symbol": Symbol, "Digest": Digest})
    assert audit_of(row)[0].ok


def test_require_refuses_an_unknown_verl_in_a_sentence(monkeypatch):
    monkeypatch.setattr(compat, "installed_version", lambda name: "0.10.0")
    with pytest.raises(compat.UnknownUpstreamError, match=r"verl 0\.10\.0 is installed, but only .* is known"):
        compat.require()


def test_require_refuses_a_changed_symbol_and_names_who_relies_on_it(upstream, monkeypatch):
    monkeypatch.setattr(compat, "LEDGER", {"a.py": (Symbol("upstream_module:gone", "called"),)})
    with pytest.raises(compat.UnknownUpstreamError, match=r"upstream_module:gone \(a\.py\)"):
        compat.require("a.py")
    compat.require("a.py", module="another_module")


@pytest.mark.parametrize(
    ("version", "known"),
    [("0.9.0", False), ("0.9.1", True), ("0.9.2.dev1", True), ("0.10.0", False), ("0.8.9", False)],
)
def test_ranges_take_pre_releases_and_local_builds(version, known):
    assert compat.in_range(version, compat.TESTED_VERSIONS["verl"]) is known
    assert compat.in_range(version + "+local", compat.TESTED_VERSIONS["verl"]) is known
