"""Hydra configuration of the PasoDoble recipe."""
