"""Write the page of the mutation check, `README.md` beside this file, from `results.json` and `argued.json`.

python tests/mutation/page.py
"""

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from mutate import ARGUED, RESULTS, argued_reason, fingerprint, write  # noqa: E402
from targets import TARGETS  # noqa: E402

PAGE = HERE / "README.md"
HEAD = """# Mutation check

Do the tests of the methods' arithmetic notice when it changes? [`mutate.py`](mutate.py) changes a pure module in one
spot at a time (a comparison, an operator, a number, a condition, a statement left out: [`mutants.py`](mutants.py)) and
runs the module's quick tests. A mutant *survives* if they pass; a failed test and an endless loop, which is ended, both
notice it.

<!-- needs minutes of processor time -->
```bash
python tests/mutation/mutate.py                    # all modules of targets.py
python tests/mutation/mutate.py recipes/sppo/loss.py
python tests/mutation/mutate.py --changed          # what changed, or its tests, since its last run
python tests/mutation/page.py                      # this page, from what was found
```

A survivor is met by a new test, or argued below: it is the same program, or differs where nothing depends on it. This
page is written by [`page.py`](page.py) from [`results.json`](results.json), which holds a hash of each module and its
tests as they were at its run, and [`argued.json`](argued.json); it names the modules that had changed since then. A
test compares the page with both files; another, with `--long`, runs all modules anew.
"""


def page(results: dict[str, Any], argued: list[dict[str, str]], modules: Iterable[str]) -> str:
    """The page's text; ``modules`` are those that should have results."""
    lines = [HEAD, *_reach(results, list(modules)), ""]
    lines += ["| module | mutants | noticed | argued | open |", "|---|---|---|---|---|"]
    survivors = []
    for module, found in results.items():
        reasons = [(survivor, argued_reason(argued, module, survivor)) for survivor in found["survivors"]]
        survivors += [(module, survivor, reason) for survivor, reason in reasons]
        with_reason = sum(reason is not None for _, reason in reasons)
        noticed = found["failed"] + found["timeout"]
        counts = (found["mutants"], noticed, with_reason, len(reasons) - with_reason)
        lines.append(f"| [`{module}`](../../{module}) | " + " | ".join(map(str, counts)) + " |")
    lines += ["", "## Survivors", ""]
    if not survivors:
        lines.append("None.")
    for module, survivor, reason in survivors:
        where = f"`{module}`" + (f", `{survivor['function']}`" if survivor["function"] else "")
        was, becomes = (_code(text) for text in _shortened(survivor["was"], survivor["becomes"]))
        lines.append(f"- {where}: {was} → {becomes}. {reason or '**Open.**'}")
    return "\n".join(lines) + "\n"


def _reach(results: dict[str, Any], modules: list[str]) -> list[str]:
    """What was tried and what was not, in sentences."""
    found = [results[module] for module in modules if module in results]
    lines = [f"Tried: {sum(one['mutants'] for one in found)} mutants of {len(found)} modules."]
    changed = [f"`{module}`" for module in modules if results.get(module, {}).get("changed")]
    lines.append(f"**Changed since, they or their tests: {', '.join(changed)}.**" if changed else "")
    missing = [f"`{module}`" for module in modules if module not in results]
    lines.append(f"**Not run: {', '.join(missing)}.**" if missing else "")
    return [line for line in lines if line]


def _shortened(was: str, becomes: str, around: int = 45) -> tuple[str, ...]:
    """Both texts, cut to some characters around what differs."""
    alike = len(os.path.commonprefix([was, becomes]))
    behind = min(len(os.path.commonprefix([was[::-1], becomes[::-1]])), len(was) - alike, len(becomes) - alike)
    start = alike - around if alike > around + 3 else 0
    left_out = behind - around if behind > around + 3 else 0
    return tuple(
        ("..." if start else "") + text[start : len(text) - left_out] + ("..." if left_out else "")
        for text in (was, becomes)
    )


def _code(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def main() -> None:
    results = json.loads(RESULTS.read_text())
    for module, found in results.items():
        found["changed"] = found["fingerprint"] != fingerprint(TARGETS[module])
    write(results)
    PAGE.write_text(page(results, json.loads(ARGUED.read_text()), TARGETS))


if __name__ == "__main__":
    main()
