"""The former name of `recipes.serl.seeds.prepare`; it forwards, with a notice, for one release."""

import runpy
import sys

if __name__ == "__main__":
    print("python -m recipes.serl.prepare_seeds is now python -m recipes.serl.seeds.prepare", file=sys.stderr)
    runpy.run_module("recipes.serl.seeds.prepare", run_name="__main__")
