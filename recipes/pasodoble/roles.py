"""One of the two policies in a V1 trainer: generate, take rewards, update, sync its rollout.

Replica ranks. The name of a vLLM server and the socket of its weight transfer are made of the replica rank alone, and
every worker group counts its replicas from 0. So the Proposer's ranks are moved behind the Solver's, at both ends:
where the server is made (:class:`OffsetServerManager`) and in the worker that sends (:class:`RoleWorker`). At one end
only, the Proposer's weights would go to the Solver's server without an error: :func:`require_matching_ranks` looks.
"""

import hashlib
import math
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray
from verl.checkpoint_engine import CheckpointEngineManager
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.ray import (
    RayClassWithInitArgs,
    RayWorkerGroup,
    ResourcePoolManager,
    create_colocated_worker_cls,
)
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1 import AgentLoopManagerTQ, PPOTrainerSync
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.device import get_torch_device
from verl.utils.metric import reduce_metrics
from verl.utils.py_functional import rename_dict
from verl.workers.engine_workers import ActorRolloutRefWorker
from verl.workers.rollout.llm_server import LLMServerManager
from verl.workers.rollout.replica import RolloutMode, get_rollout_replica_class

from recipes.core import data_plane
from recipes.core.data_plane import TRAIN, KVBatchMeta, on_last_token


class RoleWorker(ActorRolloutRefWorker):
    """verl's worker, with its rollout at replica ranks from ``replica_offset`` on."""

    def __init__(self, *args, replica_offset: int = 0, **kwargs):
        super().__init__(*args, **kwargs)
        self._replica_offset = replica_offset

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self):
        super().init_model()
        if not self._replica_offset:
            return
        rollout = self.rollout
        old = f"-replica-{rollout.replica_rank}-rank-"
        if rollout.zmq_handle.count(old) != 1:
            raise RuntimeError(f"expected {old!r} once in the weight-transfer address {rollout.zmq_handle!r}")
        rollout.replica_rank += self._replica_offset
        rollout.zmq_handle = rollout.zmq_handle.replace(old, f"-replica-{rollout.replica_rank}-rank-")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def replica_rank(self) -> int:
        """Replica rank that this worker sends its weights to."""
        return self.rollout.replica_rank

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def empty_cache(self) -> None:
        """Give memory that is not in use back to the device."""
        get_torch_device().empty_cache()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def parameter_digest(self) -> str:
        """SHA-256 over names and values of what the engine is sent, to tell whether an update touched it."""
        digest = hashlib.sha256()
        parameters, _ = self.actor.engine.get_per_tensor_param(base_sync_done=True)
        for name, value in parameters:
            digest.update(name.encode())
            digest.update(value.detach().float().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()


def offset_replica_class(base: type, offset: int) -> Callable[..., Any]:
    """A replica class whose ranks start at ``offset`` and whose workers are still counted from 0."""

    class OffsetReplica(base):
        async def init_hybrid(self, worker_group):
            first = self.world_size * (self.replica_rank - offset)
            self.rollout_mode = RolloutMode.HYBRID
            self.workers = worker_group.workers[first : first + self.world_size]
            await self.launch_servers()

    return OffsetReplica


class OffsetServerManager(LLMServerManager):
    """verl's server manager for a worker group whose replicas come after those of another one."""

    def __init__(self, config, *args, start_rank: int = 0, **kwargs):
        rollout = config.actor_rollout_ref.rollout
        base = get_rollout_replica_class(rollout.name, disaggregation_enabled=rollout.disaggregation.enabled)
        self.rollout_replica_class = offset_replica_class(base, start_rank)
        super().__init__(config, *args, start_rank=start_rank, **kwargs)


def require_matching_ranks(name: str, worker_group, server_manager) -> None:
    """Raises RuntimeError if a side's workers would send their weights to servers that are not its own."""
    senders = set(worker_group.replica_rank())
    servers = {replica.replica_rank for replica in server_manager.get_replicas()}
    if senders != servers:
        raise RuntimeError(f"the {name}'s workers send weights to replicas {senders}, its servers are {servers}")


def object_column(values: Iterable[Any]) -> np.ndarray:
    """A one-dimensional object array, whatever the values are."""
    values = list(values)
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


class RoleTrainer:
    """Mixed into a ``PPOTrainerSync``; generating and learning become separate calls on any number of groups."""

    name: str
    rollout_asleep = True
    rollout_stale = True
    """The actor has changed since the rollout got its weights."""
    peer: "RoleTrainer | None" = None
    """The side on the same devices, if any: only one rollout may be awake."""
    mini_batch_size: int | None = None
    """Responses in one optimizer step; None takes the whole batch in one."""
    # verl takes every trainer name but "sync" for an asynchronous one
    trainer_mode = property(lambda self: "sync", lambda self, value: None)

    def wake_rollout(self) -> None:
        """Give the rollout the actor's weights if it lacks them; this is also verl's only way to wake it."""
        if self.peer is not None and not self.peer.rollout_asleep:
            raise RuntimeError(f"the {self.name}'s rollout cannot wake while the {self.peer.name}'s is awake")
        discarded = self.rollout_asleep and self.config.actor_rollout_ref.rollout.free_cache_engine
        if self.rollout_stale or discarded:
            # the version of the weights is the last finished step
            self.checkpoint_manager.update_weights(max(self.global_steps - 1, 0))
        self.rollout_asleep = self.rollout_stale = False

    def sleep_rollout(self) -> None:
        """Free the rollout's share of the devices."""
        if not self.rollout_asleep:
            self.checkpoint_manager.sleep_replicas()
            self.rollout_asleep = True

    def generate(self, rows: dict[str, Iterable[Any]]) -> KVBatchMeta:
        """Generate trajectories of prompts given as columns (uid, raw_prompt, index, data_source, ...)."""
        columns = {key: object_column(values) for key, values in rows.items()}
        batch = tu.get_tensordict(columns)
        tu.assign_non_tensor_data(batch, "global_steps", self.global_steps)
        self.replay_buffer.own_uids = set(columns["uid"])
        self.wake_rollout()
        self._submit_batch_to_rollout(batch)
        trajectories, _ = self.replay_buffer.sample(self.global_steps, TRAIN, len(batch))
        self.sleep_rollout()
        trajectories.extra_info["temperature"] = self.config.actor_rollout_ref.rollout.temperature
        return trajectories

    def texts(self, batch: KVBatchMeta) -> list[str]:
        """Decode the responses without special tokens, but with the marks of thinking where they are such."""
        tokenizer, responses = self.tokenizer, data_plane.read(batch, "responses")["responses"]
        special = zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True)
        hidden = {number for number, token in special if token not in ("<think>", "</think>")}
        return [tokenizer.decode([token for token in ids.tolist() if token not in hidden]) for ids in responses]

    @staticmethod
    def set_rewards(batch: KVBatchMeta, rewards: Sequence[float]) -> None:
        """Write one reward for each trajectory onto its last token."""
        rows = on_last_token(rewards, [tag["response_len"] for tag in batch.tags])
        data_plane.write(batch, {data_plane.REWARDS: rows})

    def learn(self, batch: KVBatchMeta) -> tuple[KVBatchMeta, dict[str, float]]:
        """Make one pass over the batch; return it with its padding rows, and the metrics."""
        metrics: dict[str, float] = {}
        batch = self._balance_batch(batch, metrics=metrics)
        batch = self._compute_old_log_prob(batch, metrics=metrics)
        batch = self._compute_advantage(batch, metrics=metrics)
        return self._update_actor(batch, metrics=metrics), metrics

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        return math.lcm(dp_size, self.mini_batch_size or 1)

    def _update_actor(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        actor = self.config.actor_rollout_ref.actor
        real_rows = len(data_plane.real_keys(batch))
        batch.extra_info.update(
            calculate_entropy=bool(actor.calculate_entropy or actor.entropy_coeff != 0.0),
            distillation_use_topk=False,
            distillation_only=False,
            # dr_grpo divides by responses times loss_scale_factor; padding rows are no responses
            global_batch_size=self.mini_batch_size or real_rows,
            mini_batch_size=self.mini_batch_size or len(batch),
            epochs=actor.ppo_epochs,
            seed=actor.data_loader_seed,
            dataloader_kwargs={"shuffle": actor.shuffle},
            temperature=self.config.actor_rollout_ref.rollout.temperature,
        )
        output = rename_dict(self.actor_rollout_wg.update_actor(batch)["metrics"], "actor/")
        output["perf/mfu/actor"] = output.pop("actor/mfu")
        metrics.update(reduce_metrics(output))
        # What this side's allocator keeps is of no use to the other side on the same devices.
        self.actor_rollout_wg.empty_cache()
        self.rollout_stale = True
        return batch


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
