"""Hydra configuration of step-PPO."""
