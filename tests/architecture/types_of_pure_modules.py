"""Run mypy, strict, over the pure modules: those that reach neither verl nor Ray nor vLLM, as their place says.

    python tests/architecture/types_of_pure_modules.py

The root of each recipe but for `import_graph.IMPURE`, the errors, the reward functions, and the check of the upstream
lock files. The exit code is mypy's.
"""

import subprocess
import sys
from pathlib import Path

from import_graph import IMPURE

ROOT = Path(__file__).resolve().parents[2]


def pure_modules() -> list[Path]:
    """The files to check, sorted."""
    recipes = [path.parent for path in ROOT.glob("recipes/*/main.py") if path.parent.name != "evaluation"]
    roots = [path for recipe in recipes for path in recipe.glob("*.py") if path.stem not in IMPURE]
    rewards = (ROOT / "reward_fns").glob("*.py")
    return sorted([*roots, *rewards, ROOT / "recipes" / "errors.py", ROOT / "vllm_patches" / "upstream.py"])


def main() -> int:
    """Run mypy; returns its exit code."""
    return subprocess.call([sys.executable, "-m", "mypy", *map(str, pure_modules())], cwd=ROOT)


if __name__ == "__main__":
    sys.exit(main())
