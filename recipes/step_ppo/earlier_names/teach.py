"""`python -m recipes.step_ppo.teach`, now `recipes.step_ppo.pipeline.teach`."""

from recipes.step_ppo import earlier_names

if __name__ == "__main__":
    earlier_names.run("teach")
