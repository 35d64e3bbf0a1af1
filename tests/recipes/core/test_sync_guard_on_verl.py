"""The guard inside verl's own sender and worker extension, over their own socket; only the engine's model is small."""

import asyncio
import threading
from types import SimpleNamespace

import pytest
import torch

from recipes.core import sync_guard
from recipes.errors import StaleRollout, WeightTransferError
from vllm_patches.upstream import is_replaced


class Model(torch.nn.Module):
    """What verl's extension asks of a vLLM model: parameters, and ``load_weights``."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(32, 32))
        self.frozen = False

    def load_weights(self, weights):
        for name, value in weights:
            if not self.frozen:
                dict(self.named_parameters())[name].data.copy_(value)


@pytest.fixture
def pair(monkeypatch, tmp_path):
    """A sender and an engine worker that it reaches; both classes are subclasses, so that verl's stay as they are."""
    from recipes.core.vllm_distribution import alias_vllm_distribution

    alias_vllm_distribution()
    import verl.plugin.platform.platform_manager as platform_manager

    from recipes.core.cpu import PlatformCPU

    monkeypatch.setattr(platform_manager, "_current_platform", PlatformCPU())
    import verl.workers.rollout.vllm_rollout.utils as utils
    from verl.workers.rollout.vllm_rollout.vllm_rollout import ServerAdapter

    # The small model has no layers of experts, and no weights to pack.
    monkeypatch.setattr(utils, "patch_vllm_moe_model_weight_loader", lambda model: None)
    monkeypatch.setattr("vllm.model_executor.model_loader.utils.process_weights_after_loading", lambda *a: None)
    path = f"ipc://{tmp_path}/engine.sock"

    class Extension(utils.vLLMColocateWorkerExtension):
        def __new__(cls):
            return object.__new__(cls)

        def __init__(self):
            self.device, self.local_rank = torch.device("cpu"), 0
            self._is_qat_model = self._is_modelopt_qat = False
            config = SimpleNamespace(model_config=None, quant_config=None, speculative_config=None)
            self.model_runner = SimpleNamespace(model=Model(), vllm_config=config)

        def _get_zmq_handle(self):
            return path

        def _use_mtp_drafter_weight_sync(self):
            return False

    class Adapter(ServerAdapter):
        def __init__(self, engine):
            self.engine, self.zmq_handle, self.use_shm = engine, path, True
            self.replica_rank, self.rollout_rank, self._has_server = 0, 0, False
            self.config = SimpleNamespace(
                dtype="float32",
                quantization=None,
                checkpoint_engine=SimpleNamespace(update_weights_bucket_megabytes=1),
            )

        async def _execute_method(self, method, non_block=False, timeout=None, args=(), kwargs=None):
            if not non_block:
                return getattr(self.engine, method)(**kwargs)
            loop = asyncio.get_running_loop()
            done = loop.create_future()

            def run():
                try:
                    getattr(self.engine, method)(**kwargs)
                except BaseException as error:
                    loop.call_soon_threadsafe(done.set_exception, error)
                else:
                    loop.call_soon_threadsafe(done.set_result, None)

            threading.Thread(target=run, daemon=True).start()
            return done

    sync_guard.watch_engine(SimpleNamespace(vLLMColocateWorkerExtension=Extension))
    sync_guard.watch_sender(SimpleNamespace(ServerAdapter=Adapter))
    engine = Extension()
    return Adapter(engine), engine


def sync(adapter, value):
    weights = {"weight": torch.full((32, 32), float(value))}
    adapter.trained_samples = {"weight": torch.full((128,), float(value))}
    asyncio.run(asyncio.wait_for(adapter.update_weights(iter(weights.items()), global_steps=1), 60))


@pytest.mark.timeout(300)
def test_verls_own_sync_passes_and_loads(pair):
    adapter, engine = pair
    for step in range(3):
        sync(adapter, step)
    assert float(engine.model_runner.model.weight.max()) == 2.0


@pytest.mark.timeout(300)
def test_an_engine_that_accepts_and_ignores_weights_ends_the_run(pair):
    adapter, engine = pair
    sync(adapter, 0)
    engine.model_runner.model.frozen = True
    sync(adapter, 1)
    with pytest.raises(StaleRollout, match="own parameters have not changed"):
        sync(adapter, 2)


@pytest.mark.timeout(300)
def test_an_engine_that_loads_nothing_of_what_came_ends_the_run_at_once(pair, monkeypatch):
    adapter, engine = pair
    sync(adapter, 0)
    receive = type(engine).update_weights_from_ipc

    def forgets(self, **kwargs):
        receive(self, **kwargs)
        self.verl_duets_received = []

    monkeypatch.setattr(type(engine), "update_weights_from_ipc", forgets)
    with pytest.raises(WeightTransferError, match="0 tensors arrived, 1 were sent"):
        sync(adapter, 1)


def test_the_wrapped_methods_keep_what_ray_and_verl_read_from_them():
    import inspect

    from verl.single_controller.base.decorator import MAGIC_ATTR
    from verl.workers import engine_workers

    # Another test may have wrapped verl's own method in this process.
    upstream = inspect.unwrap(engine_workers.ActorRolloutRefWorker.update_weights, stop=lambda f: not is_replaced(f))
    worker = type("Worker", (engine_workers.ActorRolloutRefWorker,), {"update_weights": upstream})
    sync_guard.watch_actor(SimpleNamespace(ActorRolloutRefWorker=worker))
    found = worker.update_weights
    assert found is not upstream
    assert inspect.iscoroutinefunction(found) and hasattr(found, MAGIC_ATTR)
    assert getattr(found, MAGIC_ATTR) == getattr(upstream, MAGIC_ATTR)
