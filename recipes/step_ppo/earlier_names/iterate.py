"""`python -m recipes.step_ppo.iterate`, now `recipes.step_ppo.pipeline.iterate`."""

from recipes.step_ppo import earlier_names

if __name__ == "__main__":
    earlier_names.run("iterate")
