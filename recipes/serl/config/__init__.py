"""Hydra configuration of SeRL."""
