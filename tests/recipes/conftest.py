"""Ray and a TransferQueue, started once for all tests that ask for them."""

import pytest
from omegaconf import OmegaConf


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
        transfer_queue.init(OmegaConf.create({"backend": backend}))
    yield transfer_queue
    for partition, keys in (transfer_queue.kv_list() or {}).items():
        if keys:
            transfer_queue.kv_clear(keys=list(keys), partition_id=partition)
