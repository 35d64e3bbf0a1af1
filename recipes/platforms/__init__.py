"""Platforms that verl does not bring itself."""
