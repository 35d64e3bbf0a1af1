"""The verl ledger: its rows hold on the installed verl, and a changed upstream is refused."""

import os
import sys
import types

import pytest

from recipes.upstream import compat
from recipes.upstream.compat import Symbol


@pytest.fixture
def upstream(monkeypatch):
    """A module that plays an upstream one, so that it can change."""
    module = types.ModuleType("upstream_module")
    monkeypatch.setitem(sys.modules, "upstream_module", module)
    return module


def test_every_row_holds_on_the_installed_verl():
    assert [(state.row.symbol, state.detail) for state in compat.audit() if not state.ok] == []


def test_every_row_says_who_relies_on_it_and_why():
    for row in compat.LEDGER:
        assert ":" in row.symbol
        assert row.used_by.endswith(".py")
        assert row.why


def test_a_changed_signature_is_off(upstream):
    upstream.step = lambda batch, metrics, extra: None
    (state,) = compat.audit([Symbol("upstream_module:step", "a.py", "called", parameters="batch metrics")])
    assert not state.ok
    assert "(batch metrics extra)" in state.detail


def test_a_missing_symbol_and_a_missing_module_are_off(upstream):
    rows = [Symbol("upstream_module:gone", "a.py", "called"), Symbol("no_such_module:step", "a.py", "called")]
    assert [state.ok for state in compat.audit(rows)] == [False, False]


def test_a_module_that_raises_when_imported_is_off(tmp_path, monkeypatch):
    (tmp_path / "raising_upstream.py").write_text("raise OSError('libtorchcodec.so')")
    monkeypatch.syspath_prepend(str(tmp_path))
    (state,) = compat.audit([Symbol("raising_upstream:step", "a.py", "called")])
    assert not state.ok
    assert "libtorchcodec.so" in state.detail


def test_a_row_of_an_absent_distribution_is_not_looked_at():
    (state,) = compat.audit([Symbol("no_such_module:step", "a.py", "called", needs="no-such-distribution")])
    assert state.ok
    assert "not installed" in state.detail


def test_an_audit_leaves_the_environment_as_it_found_it(tmp_path, monkeypatch):
    (tmp_path / "loud_upstream.py").write_text(
        "import os\nos.environ.update(LOUD_UPSTREAM='1', TOKENIZERS_PARALLELISM='true')\nstep = print\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    (state,) = compat.audit([Symbol("loud_upstream:step", "a.py", "called")])
    assert state.ok and "LOUD_UPSTREAM" not in os.environ and os.environ["TOKENIZERS_PARALLELISM"] == "false"


def test_no_run_looks_at_what_only_the_supervised_start_imports():
    used_by = {row.used_by for row in compat.rows_for("pasodoble")}
    assert compat.SUPERVISED_START not in used_by and "recipes/common/grouped_trainer.py" in used_by
    assert any(row.used_by == compat.SUPERVISED_START for row in compat.LEDGER)


def test_the_digest_sees_code_and_neither_comments_nor_docstrings(tmp_path, monkeypatch):
    (tmp_path / "digest_cases.py").write_text(
        "def plain(x):\n    return x + 1\n\n"
        'class Holder:\n    def plain(x):\n        """Documented."""\n        # commented\n        return x + 1\n\n'
        "    class Other:\n        def plain(x):\n            return x + 2\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    plain, method, other = (
        compat.digest(compat.resolve(f"digest_cases:{path}"))
        for path in ("plain", "Holder.plain", "Holder.Other.plain")
    )
    assert plain == method
    assert plain != other


def test_a_known_digest_passes_and_an_unknown_one_does_not():
    symbol = "verl.trainer.ppo.core_algos:agg_loss"
    known = compat.digest(compat.resolve(symbol))
    rows = [
        Symbol(symbol, "a.py", "body", source=("0" * 16, known)),
        Symbol(symbol, "a.py", "body", source=("0" * 16,)),
    ]
    assert [state.ok for state in compat.audit(rows)] == [True, False]


def test_a_printed_row_passes_when_pasted():
    text = compat.row_for("verl.trainer.ppo.v1.trainer_base:PPOTrainer._compute_advantage")
    row = eval(text.strip().rstrip(","), {"Symbol": Symbol})
    assert compat.audit([row])[0].ok


def test_ensure_refuses_an_unknown_verl_in_a_sentence(monkeypatch):
    monkeypatch.setattr(compat, "installed_version", lambda name: "0.10.0")
    with pytest.raises(compat.UnknownUpstreamError, match=r"verl 0\.10\.0 is installed, but only .* is known"):
        compat.ensure([])


def test_ensure_refuses_a_changed_symbol_and_names_who_relies_on_it(upstream):
    with pytest.raises(compat.UnknownUpstreamError, match=r"upstream_module:gone \(recipes/serl/trainer\.py\)"):
        compat.ensure([Symbol("upstream_module:gone", "recipes/serl/trainer.py", "called")])


@pytest.mark.parametrize(
    ("version", "known"),
    [("0.9.0", True), ("0.9.1", True), ("0.9.2.dev1", True), ("0.10.0", False), ("0.8.9", False)],
)
def test_ranges_take_pre_releases_and_local_builds(version, known):
    assert compat.in_range(version, compat.TESTED_VERSIONS["verl"]) is known
    assert compat.in_range(version + "+local", compat.TESTED_VERSIONS["verl"]) is known
