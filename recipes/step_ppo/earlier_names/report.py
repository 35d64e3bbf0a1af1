"""`python -m recipes.step_ppo.report`, now `recipes.step_ppo.pipeline.report`."""

from recipes.step_ppo import earlier_names

if __name__ == "__main__":
    earlier_names.run("report")
