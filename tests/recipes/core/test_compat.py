"""The lock file of verl and Ray: it holds on what is installed, and a changed upstream is refused."""

import json
from pathlib import Path

import pytest

from recipes.core import compat
from vllm_patches import upstream

ROOT = Path(__file__).resolve().parents[3]


def test_the_lock_holds_on_the_installed_verl_and_ray():
    assert upstream.problems(compat.LOCK) == []


def test_every_feature_of_the_lock_is_a_file_that_relies_on_it():
    assert [file for file in json.loads(compat.LOCK.read_text())["features"] if not (ROOT / file).is_file()] == []


def test_no_run_looks_at_what_only_the_supervised_start_imports():
    files = compat.files_of("pasodoble")
    assert compat.SUPERVISED_START not in files and "recipes/core/trainer.py" in files
    assert not any("/serl/" in file for file in files)


def test_an_unknown_verl_is_refused_by_its_version(monkeypatch):
    monkeypatch.setattr(compat, "installed_version", lambda name: "0.10.0")
    with pytest.raises(compat.UnknownUpstreamError, match=r"verl 0\.10\.0"):
        compat.require()


def test_another_version_is_tried_after_a_warning_where_the_user_says_so(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(compat, "installed_version", lambda name: "0.10.0")
    monkeypatch.setenv(compat.UNTESTED_SWITCH, "1")
    monkeypatch.setattr(compat, "LOCK", tmp_path / "lock.json")
    symbols = {"verl.trainer.main_ppo:run_ppo": ["0" * 16]}
    compat.LOCK.write_text(json.dumps({"features": {"a.py": symbols, "b.py": {"verl.trainer:gone": ["(self)"]}}}))
    with caplog.at_level("WARNING", logger="recipes"):
        compat.require("a.py")
    assert "verl 0.10.0" in caplog.text
    with pytest.raises(compat.UnknownUpstreamError, match="gone"):
        compat.require("b.py")


def test_a_changed_symbol_is_refused_with_who_relies_on_it_and_the_version(monkeypatch, tmp_path):
    lock = tmp_path / "lock.json"
    lock.write_text(json.dumps({"features": {"a.py": {"verl.trainer.main_ppo:run_ppo": ["0" * 16]}, "b.py": {}}}))
    monkeypatch.setattr(compat, "LOCK", lock)
    version = compat.installed_version("verl")
    with pytest.raises(compat.UnknownUpstreamError, match=rf"verl {version} .*main_ppo:run_ppo \(a\.py\)"):
        compat.require("a.py")
    compat.require("b.py")
    compat.require("a.py", module="another_module")


@pytest.mark.parametrize(
    ("version", "known"),
    [("0.9.0", False), ("0.9.1", True), ("0.9.2.dev1", True), ("0.10.0", False), ("0.8.9", False)],
)
def test_ranges_take_pre_releases_and_local_builds(version, known):
    assert compat.in_range(version, compat.TESTED_VERSIONS["verl"]) is known
    assert compat.in_range(version + "+local", compat.TESTED_VERSIONS["verl"]) is known
