"""Links, pictures, files and modules that a Markdown file names exist."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from documents import FENCE, ROOT, documents  # noqa: E402

LINK = re.compile(r"\]\(([^)\s]+)\)")
ROOMS = "recipes|reward_fns|vllm_patches|examples|tests"
FILE = re.compile(rf"(?<![\w/.])((?:{ROOMS})/[\w./-]+\.(?:py|sh|yaml|md|jsonl|png|txt))\b")
MODULE = re.compile(rf"(?:python -m |pkg://)((?:{ROOMS})(?:\.\w+)+)")


def anchors(path: Path) -> set[str]:
    """Names of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", path.read_text(encoding="utf-8")), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_document_names_exists(path):
    text = path.read_text(encoding="utf-8")
    dead = []
    for target in LINK.findall(FENCE.sub("", text)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            dead.append(target)
    if path.name == "CHANGELOG.md":
        # What was removed is named there.
        text = ""
    dead += [name for name in FILE.findall(text) if not (ROOT / name).exists() and not (path.parent / name).exists()]
    # `my_...` stands for what the reader writes, capitals for one of several names.
    dead += [name for name in MODULE.findall(text) if not placeholder(name) and not module_exists(name)]
    assert not dead


def module_exists(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def placeholder(name: str) -> bool:
    return ".my_" in name or name.rpartition(".")[2].isupper()


def test_no_sentence_is_too_long_to_read():
    checked = subprocess.run([sys.executable, "tests/tools/prose.py"], cwd=ROOT, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
