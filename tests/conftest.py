"""Options every test room shares."""

import pytest
from hypothesis import HealthCheck, settings

# Time says nothing on a machine that does other work as well; the suite has limits of its own.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="also run the tests marked long")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--long"):
        return
    skip = pytest.mark.skip(reason="long: run with --long")
    for item in items:
        if "long" in item.keywords:
            item.add_marker(skip)
