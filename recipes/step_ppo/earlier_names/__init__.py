"""Names that an earlier README gave the stages, kept for one release: `python -m recipes.step_ppo.STAGE`."""

import runpy
import sys


def run(stage: str) -> None:
    """Say what the stage is called now, and run it."""
    name = f"recipes.step_ppo.pipeline.{stage}"
    print(f"python -m recipes.step_ppo.{stage} is now python -m {name}", file=sys.stderr)
    sys.argv[0] = stage
    runpy.run_module(name, run_name="__main__")
