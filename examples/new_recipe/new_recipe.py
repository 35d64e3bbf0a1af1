"""Add a recipe to this checkout: six files that train, to be replaced one by one by a method of your own.

    python examples/new_recipe/new_recipe.py NAME

Writes recipes/NAME (formula, estimator, main, two yaml files, README), a test of the formula, and the row in
recipes/plugin.py under which verl finds the estimator. Nothing that exists is overwritten.
"""

import argparse
import keyword
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = Path(__file__).resolve().parent / "template"
PLACEHOLDER = "my_recipe"
ROW = '    Row("adv_estimator", "{name}", "recipes.{name}.verl_plugin:compute_advantage"),\n'


class RefusedError(ValueError):
    """A name that cannot become a recipe."""


def write_recipe(name: str, root: Path = ROOT) -> list[Path]:
    """Write the files and the table's row of a new recipe below `root`; returns the files in order.

    Raises:
        RefusedError: the name is no module name, or something of that name is there already.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise RefusedError(f"{name!r} is no module name; use lower-case letters, digits and underscores")
    places = {TEMPLATE / PLACEHOLDER: root / "recipes" / name, TEMPLATE: root / "tests" / "recipes" / name}
    for folder in places.values():
        if folder.exists():
            raise RefusedError(f"{folder} is there already; choose another name")
    table = root / "recipes" / "plugin.py"
    rows = table.read_text(encoding="utf-8")
    end = rows.index("\n)\n", rows.index("\nTABLE:")) + 1

    sources = [path for path in sorted((TEMPLATE / PLACEHOLDER).rglob("*")) if path.suffix in (".py", ".yaml", ".md")]
    targets = {path: places[TEMPLATE / PLACEHOLDER] / path.relative_to(TEMPLATE / PLACEHOLDER) for path in sources}
    targets[TEMPLATE / "test_advantage.py"] = places[TEMPLATE] / "test_advantage.py"
    written = []
    for source, target in targets.items():
        target = target.with_name(target.name.replace(PLACEHOLDER, name))
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(source.read_text(encoding="utf-8").replace(PLACEHOLDER, name), encoding="utf-8")
        written.append(target)
    table.write_text(rows[:end] + ROW.format(name=name) + rows[end:], encoding="utf-8")
    return written


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", help="folder and registered name, e.g. my_method")
    name = parser.parse_args(arguments).name
    try:
        written = write_recipe(name)
    except RefusedError as error:
        print(f"new_recipe: {error}", file=sys.stderr)
        return 2
    for path in written:
        print(f"wrote {path.relative_to(ROOT)}")
    print(f"added the row of {name!r} to recipes/plugin.py; next:")
    print(f"  python -m pytest tests/recipes/{name} tests/architecture")
    print(f"  python -m recipes.{name}.main scale=toy trainer.total_training_steps=2")
    return 0


if __name__ == "__main__":
    sys.exit(main())
