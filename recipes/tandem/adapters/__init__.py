"""Tandem RL in verl: agent loop, rollout replica and its manager, trainer."""
