"""What a lock file holds of an upstream package, and what its check sees when the package changes."""

import json

import pytest

from vllm_patches import upstream

SOURCE = '''
from .inner import helper as exported
from elsewhere.module import foreign, other

REGISTRY = {}

def step(batch, *, metrics=None, **kwargs):
    """Documented."""
    return batch  # commented

if REGISTRY:
    def conditional():
        return 1
else:
    conditional = None

class Base:
    size: int = 3

    def run(self, batch):
        return batch

class Derived(Base):
    class Inner:
        @property
        def shape(self):
            return 2
'''
SYMBOLS = ("step", "exported", "foreign", "REGISTRY", "conditional", "Base.size", "Derived.run", "Derived.Inner.shape")


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An upstream package "upstream_package" whose text a test may change."""
    folder = tmp_path / "upstream_package"
    folder.mkdir()
    (folder / "__init__.py").write_text(SOURCE)
    (folder / "inner.py").write_text("def helper():\n    return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder


@pytest.fixture
def lock(package, tmp_path):
    file = tmp_path / "lock.json"
    file.write_text(json.dumps({"versions": {"upstream_package": []}, "features": {}}))
    upstream.update(file, "code", tuple(f"upstream_package:{name}" for name in SYMBOLS))
    upstream.update(file, "call", ("upstream_package:step", "upstream_package.inner:helper"), parameters=True)
    return file


def change(package, old, new, file="__init__.py"):
    text = (package / file).read_text()
    assert old in text
    (package / file).write_text(text.replace(old, new))


def test_what_was_written_down_holds_and_comments_and_docstrings_do_not_count(package, lock):
    change(package, "  # commented", "")
    change(package, '    """Documented."""\n', "\n\n")
    assert upstream.problems(lock) == []


@pytest.mark.parametrize(
    ("old", "new", "file", "symbols"),
    [
        ("return batch  #", "return -batch  #", "__init__.py", ["step (code)"]),
        ("(batch, *,", "(batch, extra, *,", "__init__.py", ["step (code)", "step (call)"]),
        ("return 1", "return 3", "inner.py", ["exported (code)"]),
        ("REGISTRY = {}", "REGISTRY = []", "__init__.py", ["REGISTRY (code)"]),
        ("elsewhere.module", "elsewhere.other", "__init__.py", ["foreign (code)"]),
        ("return 1", "return 3", "__init__.py", ["conditional (code)"]),
        ("size: int = 3", "size: int = 4", "__init__.py", ["Base.size (code)"]),
        ("        return batch\n", "        return -batch\n", "__init__.py", ["Derived.run (code)"]),
        ("class Derived(Base)", "class Derived", "__init__.py", ["Derived.run (code)"]),
        ("return 2", "return 3", "__init__.py", ["Derived.Inner.shape (code)"]),
        ("def helper", "def other", "inner.py", ["exported (code)", "inner:helper (call)"]),
    ],
)
def test_a_change_is_seen_at_the_symbols_that_it_touches(package, lock, old, new, file, symbols):
    change(package, old, new, file)
    assert len(found := upstream.problems(lock)) == len(symbols)
    assert all(any(symbol in problem for problem in found) for symbol in symbols)


def test_a_package_that_cannot_be_read_is_a_problem_and_no_exception(package, lock, monkeypatch):
    (package / "inner.py").write_text("def helper(:\n")
    assert any("inner:helper" in problem for problem in upstream.problems(lock, "call"))
    lock.write_text(json.dumps({"features": {"code": {"no_such_package:step": ["0" * 16]}}}))
    assert len(upstream.problems(lock)) == 1


def test_without_digests_code_is_let_through_and_what_is_missing_or_called_otherwise_is_not(package, lock):
    change(package, "return batch  #", "return -batch  #")
    change(package, "def helper()", "def helper(now)", "inner.py")
    change(package, "REGISTRY", "RENAMED")
    found = upstream.problems(lock, digests=False)
    assert [problem.split(" ")[0].rpartition(":")[2] for problem in found] == ["helper", "REGISTRY"]


def test_an_update_adds_what_is_installed_and_keeps_what_is_known_of_other_versions(package, lock):
    before = lock.read_text()
    upstream.update(lock)
    assert lock.read_text() == before
    change(package, "return batch  #", "return -batch  #")
    upstream.update(lock, "code")
    assert upstream.problems(lock) == []
    change(package, "return -batch  #", "return batch  #")
    assert upstream.problems(lock) == []
    change(package, "REGISTRY = {}", "")
    with pytest.raises(LookupError, match="REGISTRY"):
        upstream.update(lock)
