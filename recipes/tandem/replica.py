"""The rollout replica `tandem_vllm`: verl's vLLM server, whose engine decodes with two models."""

import logging

import ray
from omegaconf import OmegaConf
from verl.workers.rollout.vllm_rollout import ServerAdapter
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica

from recipes.errors import ConfigError
from recipes.tandem.settings import SECTION, canonical_settings, replace_section

logger = logging.getLogger(__name__)


class TandemServerAdapter(ServerAdapter):
    """The training worker's end of the weight sync: verl's own, under this rollout's name.

    The senior receives weights by its plain names; the junior is no part of the model that receives them.
    """


class TandemHttpServer(vLLMHttpServer):
    """Start vLLM with the engine arguments that `engine_kwargs.vllm.tandem_config` stands for."""

    def _validate_configs(self) -> None:
        super()._validate_configs()
        if self._disaggregation_role != "null":
            raise ConfigError("tandem decoding does not run on disaggregated prefill and decode servers.")

    def _preprocess_engine_kwargs(self, engine_kwargs: dict) -> None:
        super()._preprocess_engine_kwargs(engine_kwargs)
        plain = OmegaConf.to_container(OmegaConf.create(dict(engine_kwargs)), resolve=True)
        for notice in canonical_settings(plain.get(SECTION) or {})[1]:
            logger.warning(notice)
        mode = replace_section(plain, self.model_config.local_path, self.lora_as_adapter, self.config.max_num_seqs)
        print(f"tandem decoding: mode {mode}", flush=True)  # at the log level of a server nobody would see it
        engine_kwargs.clear()
        engine_kwargs.update(plain)

    async def tandem_stats(self) -> dict:
        """Counts of the engine's work since the last call; every worker of a tensor-parallel engine counts the same."""
        return (await self.engine.collective_rpc(method="tandem_stats"))[0]


class TandemReplica(vLLMReplica):
    """verl's vLLM replica with tandem servers."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        # verl's constructor has set its own class here; nothing reads it before the servers start.
        self.server_class = ray.remote(TandemHttpServer)

    def _get_server_name_prefix(self) -> str:
        # the training worker's adapter finds its server by the rollout's name
        return f"{self.config.name}_"
