"""`python -m recipes.step_ppo.prepare`, now `recipes.step_ppo.pipeline.prepare`."""

from recipes.step_ppo import earlier_names

if __name__ == "__main__":
    earlier_names.run("prepare")
