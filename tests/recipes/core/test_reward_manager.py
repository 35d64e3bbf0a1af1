"""The reward manager on verl's own data objects, with reward functions that do everything a reward function can do."""

import asyncio
import time
from pathlib import Path

import numpy
import pytest
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl import DataProto
from verl.trainer.ppo.reward import load_reward_manager

from recipes.errors import ConfigError
from reward_fns.result import VERL_KEYS

USER = str(Path(__file__).with_name("user_rewards.py"))


class Tokenizer:
    """Characters as tokens."""

    def decode(self, ids, skip_special_tokens=True):
        return "".join(chr(int(token)) for token in ids)


def sample(response: str, gold: str = "right") -> DataProto:
    ids = torch.tensor([[ord(character) for character in response] + [0, 0]])
    mask = torch.tensor([[1, 1] + [1] * len(response) + [0, 0]])
    batch = TensorDict({"prompts": torch.ones(1, 2), "responses": ids, "attention_mask": mask}, batch_size=1)
    columns = {"data_source": "toy", "reward_model": {"ground_truth": gold}, "extra_info": {"index": 0}}
    objects = {}
    for name, value in columns.items():
        objects[name] = numpy.empty(1, dtype=object)
        objects[name][0] = value
    return DataProto(batch=batch, non_tensor_batch=objects)


def manager(path=USER, name="compute_score", kwargs=None, **faults):
    config = OmegaConf.create(
        {
            "reward": {
                "custom_reward_function": {"path": path, "name": name, "reward_kwargs": kwargs or {}},
                "reward_manager": {"source": "register", "name": "score_skip_fail"},
            },
            "algorithm": {"reward_faults": {"time_limit": 1.5, "memory_limit": 1 << 30, **faults}},
        }
    )
    import recipes.plugin

    recipes.plugin.start()
    return load_reward_manager(config, Tokenizer())


def judge(manager, *responses):
    async def all_of_them():
        return await asyncio.gather(*[manager.run_single(sample(response)) for response in responses])

    return manager.loop.run_until_complete(all_of_them())


@pytest.fixture(scope="module")
def verdicts():
    responses = ["right", "wrong", "raise", "hang", "die", "killed", "balloon", "nan", "none", "numpy", "dict"]
    began = time.monotonic()
    verdicts = dict(zip(responses, judge(manager(), *responses), strict=True))
    assert time.monotonic() - began < 60
    return verdicts


def test_every_fault_has_the_same_keys(verdicts):
    for verdict in verdicts.values():
        assert tuple(verdict["reward_extra_info"]) == VERL_KEYS
        assert isinstance(verdict["reward_score"], float)


@pytest.mark.parametrize(
    ("response", "status", "score", "reason"),
    [
        ("right", "score", 1.0, ""),
        ("wrong", "score", 0.0, ""),
        ("numpy", "score", 0.5, ""),
        ("dict", "score", 1.0, ""),
        ("hang", "score", 0.0, "time_out"),
        ("die", "score", 0.0, "crash"),
        ("balloon", "score", 0.0, "memory"),
        ("raise", "skip", 0.0, "raised_KeyError"),
        ("killed", "skip", 0.0, "killed"),
        ("nan", "skip", 0.0, "not_finite"),
        ("none", "skip", 0.0, "none"),
    ],
)
def test_what_each_fault_becomes(verdicts, response, status, score, reason):
    info = verdicts[response]["reward_extra_info"]
    assert (info["status"], info["score"], info["reason"].partition(":")[0]) == (status, score, reason)


def test_keyword_arguments_reach_the_function():
    (verdict,) = judge(manager(kwargs={"scale": 0.25}), "right")
    assert verdict["reward_score"] == 0.25


def test_a_coroutine_function_is_bounded_too():
    right, hanging = judge(manager(name="compute_score_async"), "right", "hang")
    assert right["reward_score"] == 1.0
    assert hanging["reward_extra_info"]["status"] == "skip"
    assert hanging["reward_extra_info"]["reason"].startswith("no_answer")


def test_our_own_functions_run_in_place():
    fast = manager(path="pkg://reward_fns.math")
    assert not fast._isolated()
    verdicts = judge(fast, r"so it is \boxed{right}", r"so it is \boxed{wrong}")
    told = [(verdict["reward_extra_info"]["status"], verdict["reward_score"]) for verdict in verdicts]
    assert told == [("score", 1.0), ("score", 0.0)]


@pytest.mark.parametrize(
    "faults", [{"time_limit": 0}, {"skip_share": 1.5}, {"isolate": "perhaps"}, {"min_group": 0}, {"timelimit": 3}]
)
def test_wrong_settings_are_refused(faults):
    with pytest.raises(ConfigError) as refused:
        manager(**faults)
    assert refused.value.key == f"algorithm.reward_faults.{next(iter(faults))}"
