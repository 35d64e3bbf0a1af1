"""Rewards that any verl job can import: bounded in time and memory, exact, and fast. See README.md in this folder."""
