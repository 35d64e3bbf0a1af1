"""`python -m recipes.step_ppo.dpo`, now `recipes.step_ppo.pipeline.dpo`."""

from recipes.step_ppo import earlier_names

if __name__ == "__main__":
    earlier_names.run("dpo")
