"""Rollouts on devices of their own under verl's synchronous V1 trainers (``actor_rollout_ref.hybrid_engine=false``).

verl builds such engines only for its asynchronous trainers. The method stays synchronous here: each step's rollouts
are complete before it trains, and the new weights are in every engine before the next step asks for one.
"""

from omegaconf import DictConfig
from verl.checkpoint_engine import CheckpointEngineManager, CheckpointEngineRegistry
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.import_utils import import_external_libs
from verl.workers.rollout.llm_server import LLMServerManager

from recipes.core.data_plane import KVBatchMeta
from recipes.core.split_resources import is_split, rollout_devices
from recipes.errors import EnvironmentProblem, StaleRollout


class SplitRollout:
    """Mixin before a trainer built on ``PPOTrainerSync``; it changes nothing while the engine is hybrid.

    verl's ``_setup`` leaves engine and weight sync empty when ``_enable_hybrid_replicas`` is false. Both are put in
    place here under verl's own names, so that whatever asks for an engine (rollouts, validation, profiling, a recipe's
    own generation) or for a weight sync (after initialisation, after each step) finds them.
    """

    _enable_hybrid_replicas = True

    def __init__(self, config: DictConfig) -> None:
        self._enable_hybrid_replicas = not is_split(config)
        super().__init__(config)

    def _setup(self) -> None:
        super()._setup()
        if self._enable_hybrid_replicas:
            return
        # Without a worker group it starts standalone replicas on rollout.nnodes x n_gpus_per_node.
        self.llm_server_manager = LLMServerManager.create(config=self.config)
        self.checkpoint_manager = CheckpointEngineManager(
            config=omega_conf_to_dataclass(self.config.actor_rollout_ref.rollout.checkpoint_engine),
            actor_wg=self.actor_rollout_wg,
            replicas=self.llm_server_manager.get_replicas(),
        )

    def on_sample_end(self) -> None:
        """Leave engines with devices of their own awake; they need not free memory, and not every one can sleep."""
        if self._enable_hybrid_replicas:
            super().on_sample_end()
        elif self.curr_step_profile:
            self._stop_rollout_profiling()

    def _balance_batch(self, batch: KVBatchMeta, metrics: dict, *args, **kwargs) -> KVBatchMeta:
        self.require_current_weights(batch)
        return super()._balance_batch(batch, metrics, *args, **kwargs)

    def require_current_weights(self, batch: KVBatchMeta) -> None:
        """Refuse to train on responses of weights other than those that the last step left.

        An engine that shares its devices discards its weights while it sleeps, so that a lost sync cannot pass
        unnoticed; one that stays awake goes on with the weights it has.

        Raises:
            StaleRollout: with the versions found.
        """
        if self._enable_hybrid_replicas:
            return
        # verl's agent loop tags each response with the first and last version of the weights that it comes from.
        trained = [tag for tag in batch.tags if not tag.get("is_padding", False)]
        steps = {tag.get(name) for tag in trained for name in ("min_global_steps", "max_global_steps")}
        if steps - {self.global_steps - 1}:
            raise StaleRollout(
                f"step {self.global_steps} trains weights of version {self.global_steps - 1}, and its responses come "
                f"from {', '.join(sorted(map(str, steps)))}: a weight sync did not reach every rollout engine"
            )

    def _get_n_gpus_for_throughput(self) -> int:
        return super()._get_n_gpus_for_throughput() + rollout_devices(self.config)


def require_backend(config: DictConfig) -> None:
    """Refuse a checkpoint engine that cannot be imported here.

    Raises:
        EnvironmentProblem: with the libraries that are missing.
    """
    engine = config.actor_rollout_ref.rollout.checkpoint_engine
    try:
        import_external_libs(engine.custom_backend_module or None)
        CheckpointEngineRegistry.get(engine.backend)
    except (ImportError, ValueError) as error:
        raise EnvironmentProblem(
            f"actor_rollout_ref.rollout.checkpoint_engine.backend={engine.backend} cannot be used here: {error}"
        ) from error
