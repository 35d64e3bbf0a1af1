"""Process rewards from sampled trajectories: labels, PRM, preference pairs, and PPO with a reward at every step."""

from pathlib import Path

# `python -m recipes.step_ppo.collect` and its like find their new place through here, for one release.
__path__.append(str(Path(__file__).parent / "earlier_names"))
