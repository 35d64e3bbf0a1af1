"""Process rewards from sampled trajectories: labels, PRM, preference pairs, and PPO with a reward at every step."""

from pathlib import Path

# `python -m recipes.step_ppo.collect` and its like go on working for one release.
__path__ += [str(Path(__file__).parent / folder) for folder in ("earlier_names", "pipeline")]
