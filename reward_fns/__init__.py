"""Rewards that any verl job can import: they do not hang, do not lie, and are fast. See README.md in this folder."""
