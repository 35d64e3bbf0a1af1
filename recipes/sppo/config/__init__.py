"""Hydra configuration of the SPPO recipe."""
