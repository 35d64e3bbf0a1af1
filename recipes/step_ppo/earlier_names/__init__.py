"""Modules under names that an earlier README gave, kept for one release."""
