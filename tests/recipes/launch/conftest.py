"""Composed configs of the recipes, each composed once."""

from functools import cache
from importlib import import_module

import pytest

from recipes.launch.composition import compose_config


@cache
def _composed(recipe: str, *overrides: str):
    found = import_module(f"recipes.{recipe}.main").RECIPE
    return compose_config(found.config_module, found.config_name, overrides)


@pytest.fixture(scope="session")
def composed():
    """A copy of a recipe's config with these overrides."""
    return lambda recipe, *overrides: _composed(recipe, *overrides).copy()
