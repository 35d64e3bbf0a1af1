"""The mutation check: what it changes, that it finds what survives, and that its page and reasons are of this tree."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

import mutate  # noqa: E402
import page  # noqa: E402
from mutants import mutants  # noqa: E402
from targets import TARGETS, Target  # noqa: E402

SOURCE = '''"""A module."""

from dataclasses import dataclass

LIMIT = 0.5


@dataclass(frozen=True)
class Settings:
    size: int = 3

    def fits(self, n: int) -> bool:
        """Say so."""
        if n < 0:
            raise ValueError(f"{n} is less than {0}")
        return n <= self.size and not n == 2


def pairs(a, b):
    return [x * y for x, y in zip(a, b, strict=True) if x > LIMIT]


if __name__ == "__main__":
    print(1 + 1)
'''


def test_each_kind_of_change_is_made_once_with_its_line_and_function():
    found = {(m.line, m.function, m.was, m.becomes) for m in mutants(SOURCE)}
    fits = "return n <= self.size and (not n == 2)"
    assert found == {
        (5, "", "LIMIT = 0.5", "LIMIT = 1.5"),
        (10, "Settings", "size: int = 3", "size: int = 4"),
        (14, "Settings.fits", "if n < 0:", "if not n < 0:"),
        (14, "Settings.fits", "if n < 0:", "if n <= 0:"),
        (14, "Settings.fits", "if n < 0:", "if n >= 0:"),
        (14, "Settings.fits", "if n < 0:", "if n < 1:"),
        (15, "Settings.fits", "raise ValueError(f'{n} is less than {0}')", "pass"),
        (16, "Settings.fits", fits, "pass"),
        (16, "Settings.fits", fits, "return n <= self.size or not n == 2"),
        (16, "Settings.fits", fits, "return n < self.size and (not n == 2)"),
        (16, "Settings.fits", fits, "return n > self.size and (not n == 2)"),
        (16, "Settings.fits", fits, "return n <= self.size and (not not n == 2)"),
        (16, "Settings.fits", fits, "return n <= self.size and (not n != 2)"),
        (16, "Settings.fits", fits, "return n <= self.size and (not n == 3)"),
        *(
            (20, "pairs", "return [x * y for x, y in zip(a, b, strict=True) if x > LIMIT]", becomes)
            for becomes in (
                "pass",
                "return [x / y for x, y in zip(a, b, strict=True) if x > LIMIT]",
                "return [x * y for x, y in zip(a, b, strict=True) if not x > LIMIT]",
                "return [x * y for x, y in zip(a, b, strict=True) if x >= LIMIT]",
                "return [x * y for x, y in zip(a, b, strict=True) if x <= LIMIT]",
            )
        ),
    }
    for mutant in mutants(SOURCE):
        compile(mutant.source, "mutant", "exec")


CODE = """LIMIT = 2


def double(n):
    if n > LIMIT:
        n = LIMIT
    return n * 2


def forever(n):
    while n > 0:
        n -= 1
"""
TESTS = """from small.code import double, forever


def test_double():
    assert double(1) == 2
    assert double(3) == 4


def test_forever():
    forever(3)
"""


def test_survivors_are_found_and_endless_loops_are_ended(tmp_path):
    """On a module of its own, in a process of its own."""
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "code.py").write_text(CODE)
    (tmp_path / "small" / "test_code.py").write_text(TESTS)
    program = f"""
import json, sys
from pathlib import Path
sys.path[:0] = [{str(HERE)!r}, {str(tmp_path)!r}]
import mutate
mutate.ROOT, mutate.OUTPUT = Path({str(tmp_path)!r}), Path({str(tmp_path)!r}) / "out"
mutate.PROCESSOR_SECONDS = 1
import os
os.chdir(mutate.ROOT)
print(json.dumps(mutate.try_mutants(mutate.Target("small/code.py", ("small/test_code.py",)))))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240)
    found = json.loads(done.stdout.splitlines()[-1])
    survivors = {(s["function"], s["was"], s["becomes"]) for s in found["survivors"]}
    assert survivors == {
        # at the limit both branches give the limit
        ("double", "if n > LIMIT:", "if n >= LIMIT:"),
        ("forever", "while n > 0:", "while not n > 0:"),
        ("forever", "while n > 0:", "while n >= 0:"),
        ("forever", "while n > 0:", "while n <= 0:"),
        ("forever", "while n > 0:", "while n > 1:"),
        ("forever", "n -= 1", "n -= 2"),
    }, done.stderr
    assert found["timeout"] == 2, "n += 1, and no change of n"
    assert found["failed"] + found["timeout"] + len(survivors) == found["mutants"]


def test_targets_name_files():
    for target in TARGETS.values():
        for path in (target.module, *target.tests):
            assert (ROOT / path).is_file(), path


def test_every_reason_is_of_a_survivor():
    results = json.loads(mutate.RESULTS.read_text())
    survivors = {
        (module, survivor["function"], survivor["was"], survivor["becomes"])
        for module, found in results.items()
        for survivor in found["survivors"]
    }
    for entry in json.loads(mutate.ARGUED.read_text()):
        assert (entry["module"], entry["function"], entry["was"], entry["becomes"]) in survivors, entry
        assert len(entry["reason"]) > 10


def test_the_page_is_what_was_found_and_leaves_nothing_open():
    results, argued = json.loads(mutate.RESULTS.read_text()), json.loads(mutate.ARGUED.read_text())
    assert page.PAGE.read_text() == page.page(results, argued, TARGETS), "run tests/mutation/page.py"
    for module, found in results.items():
        if not found["changed"]:  # else the page says that the run is older
            for survivor in found["survivors"]:
                assert mutate.argued_reason(argued, module, survivor) is not None, (module, survivor)


def test_the_page_names_what_was_not_tried():
    found = {"mutants": 2, "failed": 1, "timeout": 0}
    survivor = {"function": "f", "was": "a < b", "becomes": "a <= b"}
    text = page.page({"m.py": found | {"survivors": [survivor], "changed": True}}, [], ["m.py", "other.py"])
    assert "Tried: 2 mutants of 1 modules." in text
    assert "tests: `m.py`.**" in text and "**Not run: `other.py`.**" in text and "**Open.**" in text
    argued = [survivor | {"module": "m.py", "reason": "They are never equal."}]
    whole = page.page({"m.py": found | {"survivors": [survivor]}}, argued, ["m.py"])
    assert "Not run" not in whole and "Changed" not in whole and "Open" not in whole
    assert "`a < b` → `a <= b`. They are never equal." in whole


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("module", sorted(TARGETS))
def test_every_mutant_is_noticed_or_argued(module):
    assert isinstance(TARGETS[module], Target)
    found = mutate.try_mutants(TARGETS[module])
    argued = json.loads(mutate.ARGUED.read_text())
    assert [s for s in found["survivors"] if mutate.argued_reason(argued, module, s) is None] == []
