"""`python -m recipes.step_ppo.collect`, now `recipes.step_ppo.pipeline.collect`."""

from recipes.step_ppo import earlier_names

if __name__ == "__main__":
    earlier_names.run("collect")
