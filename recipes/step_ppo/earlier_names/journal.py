"""`python -m recipes.step_ppo.journal`, now `recipes.step_ppo.pipeline.merge`."""

import runpy

if __name__ == "__main__":
    runpy.run_module("recipes.step_ppo.pipeline.merge", run_name="__main__")
