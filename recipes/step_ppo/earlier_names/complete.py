"""`python -m recipes.step_ppo.complete`, now `recipes.step_ppo.pipeline.complete`."""

from recipes.step_ppo import earlier_names

if __name__ == "__main__":
    earlier_names.run("complete")
