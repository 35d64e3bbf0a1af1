"""`python -m recipes.step_ppo.journal`, now `recipes.step_ppo.pipeline.merge`."""

from recipes.step_ppo import earlier_names

if __name__ == "__main__":
    earlier_names.run("merge")
