"""Process rewards from sampled trajectories: labels, PRM, preference pairs, and PPO with a reward at every step."""
