"""Config layers of the platforms."""
