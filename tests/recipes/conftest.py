"""Ray and a TransferQueue, started once for all tests that ask for them; and composed configs."""

from functools import cache
from importlib import import_module

import pytest
from omegaconf import OmegaConf


@cache
def _chosen(recipe, *choices):
    from recipes.launch.composition import compose_config

    found = import_module(f"recipes.{recipe}.main").RECIPE
    return compose_config(found.config_module, found.config_name, choices)


@pytest.fixture(scope="session")
def composed():
    """A recipe's config with these overrides: its groups are composed once, keys are set in a copy."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    def compose(recipe, *overrides):
        parsed = OverridesParser.create().parse_overrides(list(overrides))
        keys = [one for one in parsed if "." in one.key_or_group]
        config = _chosen(recipe, *(one.input_line for one in parsed if one not in keys)).copy()
        for one in keys:
            OmegaConf.update(config, one.key_or_group, one.value(), force_add=one.is_add())
        return config

    return compose


def _asks(item) -> bool:
    return item is not None and "queue" in getattr(item, "fixturenames", ())


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """The tests that need Ray stand together at the end, so that it starts once."""
    items.sort(key=_asks)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """No other test sees a Ray that it did not start."""
    if _asks(item) and not _asks(nextitem):
        _end()


def _end() -> None:
    import ray
    import transfer_queue

    if ray.is_initialized():
        transfer_queue.close()
        ray.shutdown()


@pytest.fixture
def queue():
    """The module of a TransferQueue that runs and is empty."""
    from recipes.core.vllm_distribution import vllm_known_by_either_name

    with vllm_known_by_either_name():
        import ray
        import transfer_queue
        import verl.trainer.ppo.v1  # noqa: F401
    if not ray.is_initialized():
        ray.init(
            address="local", num_cpus=4, include_dashboard=False, object_store_memory=100_000_000, log_to_driver=False
        )
        storage = {"num_data_storage_units": 1, "total_storage_size": 5000}
        backend = {"storage_backend": "SimpleStorage", "SimpleStorage": storage}
        try:
            transfer_queue.init(OmegaConf.create({"backend": backend}))
        except BaseException:  # with half of one every later test would wait for its own limit
            _end()
            raise
    yield transfer_queue
    for partition, keys in (transfer_queue.kv_list() or {}).items():
        if keys:
            transfer_queue.kv_clear(keys=list(keys), partition_id=partition)
