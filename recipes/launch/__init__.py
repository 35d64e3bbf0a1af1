"""Start a recipe: compose its config, refuse bad input before Ray starts, run it on this machine or a cluster."""
