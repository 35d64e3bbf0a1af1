"""Hydra configuration of the tandem recipe."""
