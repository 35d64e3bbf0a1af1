"""Hydra configuration: what differs from verl's ppo_trainer."""
