"""Hydra configuration of the evaluation."""
