"""`python -m recipes.step_ppo.prm`, now `recipes.step_ppo.pipeline.prm`."""

from recipes.step_ppo import earlier_names

if __name__ == "__main__":
    earlier_names.run("prm")
