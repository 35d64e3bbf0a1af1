"""The notebook is the script: the same cells in the same order."""

import json
import re
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_notebook_has_the_cells_of_the_script():
    blocks = re.split(r"^# %%", (EXAMPLES / "first_steps.py").read_text(), flags=re.MULTILINE)[1:]
    cells = json.loads((EXAMPLES / "first_steps.ipynb").read_text())["cells"]
    assert len(cells) == len(blocks) > 5
    for cell, block in zip(cells, blocks, strict=True):
        head, _, body = block.partition("\n")
        markdown = "[markdown]" in head
        assert cell["cell_type"] == ("markdown" if markdown else "code")
        lines = [re.sub("^# ?", "", line) if markdown else line for line in body.strip("\n").split("\n")]
        assert "".join(cell["source"]) == "\n".join(lines)
