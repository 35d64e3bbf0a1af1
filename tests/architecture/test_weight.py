"""The weight of the house against its ceilings in tests/weight.json; raising one needs a reason in the commit."""

import json
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = ("recipes/", "reward_fns/", "vllm_patches/")


def words(text):
    """How many words a page has; the bars of its tables are none."""
    return sum(any(map(str.isalnum, word)) for word in text.split())


def measure():
    """Lines of Python, numbers of files and words of pages, as git lists them."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    files = [name for name in listed if name and (ROOT / name).is_file()]

    def lines(*folders):
        return sum(
            (ROOT / name).read_text().count("\n") for name in files if name.endswith(".py") and name.startswith(folders)
        )

    return {
        "product, lines of Python": lines(*PRODUCT),
        "tests, lines of Python": lines("tests/"),
        "examples, lines of Python": lines("examples/"),
        "product, files of Python": sum(name.endswith(".py") and name.startswith(PRODUCT) for name in files),
        "yaml files": sum(name.endswith(".yaml") for name in files),
        "words of the pages": sum(words((ROOT / name).read_text()) for name in files if name.endswith(".md")),
    }


def test_nothing_is_heavier_than_its_ceiling(capsys):
    ceilings, found = json.loads((ROOT / "tests/weight.json").read_text()), measure()
    with capsys.disabled():
        print("\n" + "\n".join(f"{name:28} {found[name]:7,} of {ceilings[name]:7,}" for name in ceilings))
    assert found.keys() == ceilings.keys()
    assert {name: value for name, value in found.items() if value > ceilings[name]} == {}
