"""Make the toy world: `python examples/toy/make.py --out outputs/toy --seed 0`."""

import argparse
import sys
from pathlib import Path

from toy_world.build import ToyWorldError, build
from toy_world.formats import FORMATS
from toy_world.model import SHAPES


def main() -> int:
    """Make the world the command line asks for, or say that it already stands; 1 with one sentence when it cannot."""
    parser = argparse.ArgumentParser(description="Make a tokenizer, a warmed-up tiny Qwen3 and verl data files.")
    parser.add_argument(
        "--out", type=Path, default=Path("outputs/toy"), help="folder of the world (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--format", choices=sorted(FORMATS), default="arithmetic")
    parser.add_argument(
        "--shapes",
        default="base",
        help=f"of {', '.join(SHAPES)}, comma-separated; the first goes to model/, others to model_<shape>/",
    )
    parser.add_argument("--force", action="store_true", help="make it again even if it stands")
    arguments = parser.parse_args()
    try:
        world = build(
            arguments.out,
            format_name=arguments.format,
            seed=arguments.seed,
            shapes=tuple(arguments.shapes.split(",")),
            force=arguments.force,
        )
    except ToyWorldError as error:
        print(f"toy world: {error}", file=sys.stderr)
        return 1
    accuracies = ", ".join(f"{name} {100 * report['accuracy']:.1f} %" for name, report in world["models"].items())
    print(
        f"toy world in {arguments.out}: {world['train']} training and {world['test']} held-out problems; "
        f"greedy held-out accuracy {accuracies}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
