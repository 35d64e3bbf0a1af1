"""The pipeline around step-PPO, from data to report: `python -m recipes.step_ppo.pipeline.STAGE` for each stage."""
