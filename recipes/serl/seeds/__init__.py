"""The seed questions of a run: read, chosen by agreement and level, written for verl."""
