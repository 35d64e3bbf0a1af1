"""The Proposer: a second policy with workers, optimizer, vLLM servers and weight sync of its own beside the Solver."""

import os
from pathlib import Path

import ray
from verl.checkpoint_engine import CheckpointEngineManager
from verl.single_controller.ray import (
    RayClassWithInitArgs,
    RayWorkerGroup,
    ResourcePoolManager,
    create_colocated_worker_cls,
)
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1 import AgentLoopManagerTQ, PPOTrainerSync
from verl.utils.config import omega_conf_to_dataclass

from recipes.pasodoble.roles import OffsetServerManager, RoleTrainer, RoleWorker, require_matching_ranks

POOL = "proposer_pool"
WORKERS = str(Role.ActorRollout)


class SharedPoolManager(ResourcePoolManager):
    """Gives out a resource pool that exists already."""

    def __init__(self, pool, mapping):
        super().__init__(resource_pool_spec={POOL: list(pool.store)}, mapping=mapping)
        self.resource_pool_dict[POOL] = pool

    def create_resource_pool(self):
        """Nothing to create."""


class ProposerTrainer(RoleTrainer, PPOTrainerSync):
    """Has no data, no reward loop and no ``fit``: the Solver's trainer calls it."""

    name = "proposer"

    def __init__(self, config, solver: PPOTrainerSync):
        self._solver = solver
        super().__init__(config)

    def _setup(self):
        self.global_steps = self._solver.global_steps
        self._init_tokenizer()
        self._init_resource_pool_mgr()
        self.resource_pool_manager.create_resource_pool()
        pool = self.resource_pool_manager.get_resource_pool(Role.ActorRollout)
        offset = len(self._solver.llm_server_manager.get_replicas())
        workers = RayClassWithInitArgs(
            cls=ray.remote(RoleWorker),
            config=self.config.actor_rollout_ref,
            role=WORKERS,
            replica_offset=offset,
        )
        group = RayWorkerGroup(
            resource_pool=pool,
            ray_cls_with_init=create_colocated_worker_cls({WORKERS: workers}),
            device_name=self.config.trainer.device,
        )
        self.actor_rollout_wg = group.spawn(prefix_set=[WORKERS])[WORKERS]
        self.actor_rollout_wg.init_model()
        self.reward_loop_manager = None
        self.llm_server_manager = OffsetServerManager.create(
            config=self.config, worker_group=self.actor_rollout_wg, rollout_resource_pool=pool, start_rank=offset
        )
        require_matching_ranks(self.name, self.actor_rollout_wg, self.llm_server_manager)
        transfer = omega_conf_to_dataclass(self.config.actor_rollout_ref.rollout.checkpoint_engine)
        transfer.backend = "naive"
        self.checkpoint_manager = CheckpointEngineManager(
            config=transfer, actor_wg=self.actor_rollout_wg, replicas=self.llm_server_manager.get_replicas()
        )
        self.checkpoint_manager.sleep_replicas()

    def _init_resource_pool_mgr(self):
        self.mapping = {Role.ActorRollout: POOL}
        if self._solver.settings.layout == "colocate":
            shared = self._solver.resource_pool_manager.resource_pool_dict["global_pool"]
            self.resource_pool_manager = SharedPoolManager(shared, self.mapping)
        else:
            trainer = self.config.trainer
            spec = {POOL: [trainer.n_gpus_per_node] * trainer.nnodes}
            self.resource_pool_manager = ResourcePoolManager(resource_pool_spec=spec, mapping=self.mapping)

    def on_init_end(self):
        # no reward handles: the driver writes the Proposer's rewards once the Solver has answered
        self.agent_loop_manager = AgentLoopManagerTQ.create(
            config=self.config,
            llm_client=self.llm_server_manager.get_client(),
            teacher_client=None,
            reward_loop_worker_handles=None,
        )

    def save(self, folder: str | Path) -> None:
        """Write model, optimizer and scheduler under ``folder``."""
        keep = self.config.trainer.get("max_actor_ckpt_to_keep", None)
        path = os.path.join(folder, self.name)
        self.actor_rollout_wg.save_checkpoint(path, None, self.global_steps, max_ckpt_to_keep=keep)

    def load(self, folder: str | Path) -> None:
        """Read what ``save`` wrote."""
        self.actor_rollout_wg.load_checkpoint(
            local_path=os.path.join(folder, self.name),
            del_local_after_load=self.config.trainer.del_local_ckpt_after_load,
        )
        self.rollout_stale = True
