"""The worker class of a tandem engine: the stock worker, whose model runner learns to decode with two models."""

from __future__ import annotations

import dataclasses

from vllm.platforms import current_platform

from vllm_patches import guard
from vllm_patches.tandem.config import CONFIG_KEY, TandemConfig
from vllm_patches.tandem.engine_checks import check_engine, resolve_mode
from vllm_patches.tandem.junior import HostCopy

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as StockWorker
else:
    from vllm.v1.worker.gpu_worker import Worker as StockWorker


class TandemWorker(StockWorker):
    """``worker_cls`` of a tandem engine.

    Raises:
        vllm_patches.guard.UnsupportedVllmError: this vLLM is not one that the decoder supports.
        vllm_patches.tandem.engine_checks.TandemRefusedError: the engine's options cannot be combined with tandem.
        ValueError: faulty tandem settings, an unreadable junior, or one with another vocabulary.
    """

    def __init__(self, vllm_config, *args, **kwargs) -> None:
        guard.require("tandem")
        config = TandemConfig.from_mapping(vllm_config.additional_config.get(CONFIG_KEY, {}))
        mode = resolve_mode(config, vllm_config)
        self._speculates = mode == "speculative"
        if self._speculates:
            guard.require("speculative")
        check_engine(config, vllm_config)
        if vllm_config.lora_config is not None and mode == "lazy":
            guard.require("lazy_adapters")
        super().__init__(vllm_config, *args, **kwargs)
        self._junior_on_host: HostCopy | None = None
        self._junior_discarded = False
        self._weights_asleep = False

    def init_device(self) -> None:
        # vLLM names the runner's class in here, so the mixin goes before the class of what it made.
        super().init_device()
        if self._speculates:
            from vllm_patches.tandem.speculative.runner import SpeculativeRunnerMixin as Mixin
        else:
            from vllm_patches.tandem.runner import TandemRunnerMixin as Mixin

        stock = type(self.model_runner)
        self.model_runner.__class__ = type(f"Tandem{stock.__name__}", (Mixin, stock), {})

    def sleep(self, level: int = 1) -> None:
        """As the stock worker's. Level 2 discards all weights and a trainer syncs only the senior again, so the junior,
        which never changes, is copied to host memory before the first such sleep."""
        if level == 2:
            self._junior_discarded = True
            if self._junior_on_host is None:
                self._junior_on_host = HostCopy(self.model_runner.junior)
        self._weights_asleep = True
        super().sleep(level)

    def wake_up(self, tags: list[str] | None = None) -> None:
        """As the stock worker's; after a level 2 sleep the junior's weights come back with the ``weights`` tag."""
        super().wake_up(tags)
        if self._junior_discarded and (tags is None or "weights" in tags):
            self._junior_on_host.restore(self.model_runner.junior)
            self._junior_discarded = False
        if tags is None or "weights" in tags:
            self._weights_asleep = False
        self._check_shared_weights()

    def add_lora(self, lora_request) -> bool:
        """As the stock worker's; a trainer sends an adapter after each update, and the base must not have moved."""
        self._check_shared_weights()
        return super().add_lora(lora_request)

    def start_weight_update(self) -> None:
        """As the stock worker's, unless the weights are the junior's as well."""
        if self.model_runner.frozen_base is not None:
            self.model_runner.frozen_base.refuse()
        super().start_weight_update()

    def _check_shared_weights(self) -> None:
        base = self.model_runner.frozen_base
        if base is not None and not self._weights_asleep:
            base.check()

    def tandem_stats(self) -> dict:
        """What both models did since the last call; for ``collective_rpc``."""
        stats = self.model_runner.tandem_stats
        self.model_runner.tandem_stats = type(stats)()
        return dataclasses.asdict(stats)
