"""A patch is applied to a module that looks as the lock file says, and to no other."""

import functools
import importlib
import json
import sys

import pytest

from recipes.core import compat, own_log
from recipes.core.patching import patch_when_imported
from vllm_patches.upstream import is_replaced, replaces


def double(module):
    upstream = module.step

    @replaces(upstream)
    def step(batch):
        return 2 * upstream(batch)

    module.step = step


@pytest.fixture
def messages(monkeypatch, tmp_path):
    """A lock for `a.py`, whose upstream module doubles a batch; other symbols of `a.py` do not matter to it."""
    (tmp_path / "upstream_package").mkdir()
    (tmp_path / "upstream_package" / "module.py").write_text("def step(batch):\n    return batch + 1\n")
    known = {"upstream_package.module:step": ["(batch)"], "other_package:gone": ["(batch)"]}
    lock = tmp_path / "lock.json"
    lock.write_text(json.dumps({"features": {"a.py": known}}))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(compat, "LOCK", lock)
    monkeypatch.setattr(own_log, "messages", [])
    yield own_log.messages
    for name in ("upstream_package.module", "upstream_package"):
        sys.modules.pop(name, None)


def imported():
    patch_when_imported("upstream_package.module", "a.py", double)
    return importlib.import_module("upstream_package.module")


def test_a_module_as_expected_is_patched(messages):
    module = imported()
    assert module.step(3) == 8 and is_replaced(module.step) and messages == []


def test_a_changed_module_is_left_alone_with_a_message(tmp_path, messages):
    (tmp_path / "upstream_package" / "module.py").write_text("def step(batch, metrics):\n    return batch\n")
    module = imported()
    assert not is_replaced(module.step)
    assert len(messages) == 1 and "upstream_package.module:step" in messages[0]


def test_what_wraps_a_replacement_does_not_carry_the_replaced_callable_along():
    """Ray wraps every method of an actor's class, and pickles by value what the wrapper holds."""
    upstream = lambda batch: batch  # noqa: E731
    replacement = replaces(upstream)(lambda batch: 2 * upstream(batch))
    wrapper = functools.wraps(replacement)(lambda batch: replacement(batch))
    assert is_replaced(wrapper)
    assert not any(callable(value) for name, value in vars(wrapper).items() if name != "__wrapped__")
