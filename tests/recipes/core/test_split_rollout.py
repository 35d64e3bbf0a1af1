"""What the mixin adds to the synchronous trainer, and that it adds nothing while devices are shared."""

from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from recipes.core.vllm_distribution import vllm_known_by_either_name
from recipes.errors import EnvironmentProblem

with vllm_known_by_either_name():
    from transfer_queue import KVBatchMeta

    from recipes.core.split_rollout import SplitRollout, StaleRollout, require_backend
    from recipes.core.trainer import DuetTrainer


class Trainer(SplitRollout, DuetTrainer):
    pass


class Sleepers:
    """verl's checkpoint manager, of which only sleeping is watched."""

    slept = 0

    def sleep_replicas(self):
        self.slept += 1


@pytest.fixture(params=[True, False], ids=["hybrid", "split"])
def hybrid(request):
    return request.param


@pytest.fixture
def trainer(hybrid):
    made = Trainer.__new__(Trainer)
    made._enable_hybrid_replicas = hybrid
    made.global_steps = 3
    made.curr_step_profile = False
    made.checkpoint_manager = Sleepers()
    made.resource_pool_manager = SimpleNamespace(get_n_gpus=lambda: 8)
    rollout = {"nnodes": 2, "n_gpus_per_node": 3}
    made.config = OmegaConf.create({"actor_rollout_ref": {"hybrid_engine": hybrid, "rollout": rollout}})
    return made


def batch(*versions, padding=()):
    tags = [{"min_global_steps": first, "max_global_steps": last} for first, last in versions]
    tags += [{"is_padding": True} for _ in padding]
    return KVBatchMeta(keys=[str(number) for number in range(len(tags))], tags=tags, partition_id="train")


def test_only_engines_that_share_their_devices_sleep(trainer, hybrid):
    trainer.on_sample_end()
    assert trainer.checkpoint_manager.slept == hybrid


def test_devices_of_rollouts_count_for_throughput(trainer, hybrid):
    assert trainer._get_n_gpus_for_throughput() == (8 if hybrid else 14)


def test_responses_of_the_last_steps_weights_train(trainer):
    trainer.require_current_weights(batch((2, 2), (2, 2), padding=[0]))
    trainer.require_current_weights(batch())


@pytest.mark.parametrize("versions", [[(1, 1)], [(2, 2), (1, 2)], [(2, 2), (None, None)], [(3, 3)]])
@pytest.mark.parametrize("hybrid", [False], indirect=True)
def test_a_lost_sync_ends_the_run(trainer, versions):
    with pytest.raises(StaleRollout, match="step 3 trains weights of version 2, and its responses come from"):
        trainer._balance_batch(batch(*versions), metrics={})


@pytest.mark.parametrize("hybrid", [True], indirect=True)
def test_shared_devices_are_left_to_verl(trainer):
    trainer.require_current_weights(batch((None, None)))


def backend(name, module=None):
    engine = {"backend": name, "custom_backend_module": module}
    return OmegaConf.create({"actor_rollout_ref": {"rollout": {"checkpoint_engine": engine}}})


def test_a_backend_that_is_not_installed_is_refused_with_what_is_missing():
    with pytest.raises(EnvironmentProblem, match="backend=no_such cannot be used here: .* not registered"):
        require_backend(backend("no_such"))
    with pytest.raises(EnvironmentProblem, match="no_such_module"):
        require_backend(backend("gloo", "no_such_module"))


def test_gloo_is_registered_by_its_module():
    require_backend(backend("gloo", "recipes.core.gloo_checkpoint_engine"))
