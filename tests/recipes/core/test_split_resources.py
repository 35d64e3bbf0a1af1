"""Which devices rollouts may have of their own, and what sends weights to them."""

import pytest
from omegaconf import OmegaConf

from recipes.core.split_resources import check_resources, choose_backend, rollout_devices
from recipes.errors import ConfigError

ROLLOUT = {
    "nnodes": 1,
    "n_gpus_per_node": 4,
    "tensor_model_parallel_size": 2,
    "data_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "checkpoint_engine": {"backend": "nccl"},
}


def config(**changes):
    tree = {
        "trainer": {"device": "cuda"},
        "actor_rollout_ref": {
            "hybrid_engine": False,
            "rollout": ROLLOUT,
            "model": {"lora_rank": 0, "lora_adapter_path": None, "lora": {"merge": False}},
        },
        "reward": {"reward_model": {"enable": False, "enable_resource_pool": False}},
    }
    made = OmegaConf.create(tree)
    for key, value in changes.items():
        OmegaConf.update(made, key, value)
    return made


def rollout(**changes):
    return config(**{f"actor_rollout_ref.rollout.{key}": value for key, value in changes.items()})


@pytest.mark.parametrize(
    ("device", "given", "chosen"),
    [("cuda", None, "nccl"), ("npu", None, "nccl"), ("cpu", None, "gloo"), ("cpu", "nixl", "nixl")],
)
def test_the_device_chooses_the_backend_that_is_left_open(device, given, chosen):
    made = config(**{"trainer.device": device, "actor_rollout_ref.rollout.checkpoint_engine.backend": given})
    choose_backend(made)
    assert made.actor_rollout_ref.rollout.checkpoint_engine.backend == chosen


def test_shared_devices_keep_their_backend_and_take_no_more_of_them():
    made = config(
        **{
            "actor_rollout_ref.hybrid_engine": True,
            "actor_rollout_ref.rollout.nnodes": 0,
            "actor_rollout_ref.rollout.checkpoint_engine.backend": None,
        }
    )
    choose_backend(made)
    check_resources(made)
    assert made.actor_rollout_ref.rollout.checkpoint_engine.backend is None
    assert rollout_devices(made) == 0


@pytest.mark.parametrize(
    ("nodes", "per_node", "tensor", "pipeline"), [(1, 1, 1, 1), (2, 8, 8, 2), (1, 8, 4, 1), (4, 2, 2, 2), (3, 4, 2, 1)]
)
def test_engines_that_fill_nodes_or_fit_into_one_pass(nodes, per_node, tensor, pipeline):
    made = rollout(
        nnodes=nodes,
        n_gpus_per_node=per_node,
        tensor_model_parallel_size=tensor,
        pipeline_model_parallel_size=pipeline,
    )
    check_resources(made)
    assert rollout_devices(made) == nodes * per_node


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nnodes": 0}, "rollout.nnodes=0 x n_gpus_per_node=4 leaves rollouts without devices"),
        ({"n_gpus_per_node": 0}, "set both to at least 1"),
        ({"checkpoint_engine.backend": "naive"}, "backend=naive cannot send weights to other devices: set nccl"),
        ({"checkpoint_engine.backend": None}, "backend=None cannot send weights"),
        ({"checkpoint_engine.backend": "delta_sharded"}, "a lost weight sync would go unseen"),
        ({"tensor_model_parallel_size": 8}, "an engine of 8 devices"),
        ({"n_gpus_per_node": 3}, "an engine of 2 devices"),
        # Six devices are three engines of two, of which one would have to lie on both nodes.
        ({"nnodes": 2, "n_gpus_per_node": 3}, "does not divide actor_rollout_ref.rollout.nnodes=2 x n_gpus_per_node=3"),
    ],
)
def test_devices_that_rollouts_cannot_have_are_refused(changes, message):
    with pytest.raises(ConfigError) as refusal:
        check_resources(rollout(**changes))
    assert message in str(refusal.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"actor_rollout_ref.hybrid_engine": True}, "only with actor_rollout_ref.hybrid_engine=false"),
        ({"actor_rollout_ref.model.lora_rank": 8}, "do not carry LoRA adapters"),
        ({"actor_rollout_ref.model.lora_adapter_path": "/adapter"}, "do not carry LoRA adapters"),
        ({"reward.reward_model.enable": True}, "reward.reward_model.enable_resource_pool=true"),
    ],
)
def test_what_needs_shared_devices_is_refused(changes, message):
    with pytest.raises(ConfigError) as refusal:
        check_resources(config(**changes))
    assert message in str(refusal.value)


def test_merged_adapters_are_plain_weights():
    check_resources(config(**{"actor_rollout_ref.model.lora_rank": 8, "actor_rollout_ref.model.lora.merge": True}))
