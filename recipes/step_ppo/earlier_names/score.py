"""`python -m recipes.step_ppo.score`, now `recipes.step_ppo.pipeline.score`."""

from recipes.step_ppo import earlier_names

if __name__ == "__main__":
    earlier_names.run("score")
