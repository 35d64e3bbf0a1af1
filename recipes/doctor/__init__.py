"""Examine an environment or a Ray cluster: versions, registered names, the upstream symbols this package relies on."""
