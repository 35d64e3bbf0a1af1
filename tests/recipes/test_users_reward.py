"""A reward function of the user's in each recipe's config: one that hangs, and one that returns a number."""

import asyncio
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import open_dict
from verl import DataProto
from verl.experimental.reward_loop.reward_manager import registry

from recipes import plugin
from recipes.core import reward_call
from reward_fns.result import Score, from_verl

sys.path.insert(0, str(Path(__file__).parent / "step_ppo"))
from trajectories import byte_level_tokenizer

FUNCTIONS = """
import time

def hangs(data_source, solution_str, ground_truth, extra_info=None):
    time.sleep(3600)

def number(data_source, solution_str, ground_truth, extra_info=None):
    return 0.75
"""
CHOICES = {"step_ppo": ["preset=outcome"]}


@pytest.fixture(scope="module")
def tokenizer():
    return byte_level_tokenizer()


@pytest.fixture
def judge(tokenizer, tmp_path, composed):
    """Gives what the recipe's reward manager makes of one response with the function of this name."""
    path = tmp_path / "rewards.py"
    path.write_text(FUNCTIONS)

    # A process that imported one of the managers before verl has not registered it yet.
    plugin.activate()

    def judge(recipe: str, name: str):
        overrides = ["scale=toy", *CHOICES.get(recipe, []), f"actor_rollout_ref.model.path={tmp_path}"]
        overrides += [f"reward.custom_reward_function.path={path}", f"reward.custom_reward_function.name={name}"]
        config = composed(recipe, *overrides, "algorithm.reward_faults.time_limit=1")
        with open_dict(config):
            config.reward.custom_reward_function.reward_kwargs = {}
        manager = registry.get_reward_manager_cls(config.reward.reward_manager.name)(
            config, tokenizer, reward_call.load_function(str(path), name)
        )
        text = " so it is\nObservation 1: it holds\nAction 1: Finish[The answer is B.]"
        response = [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        row = {"prompts": [5, 5], "responses": response, "attention_mask": [1] * (2 + len(response))}
        fields = {"reward_model": {"ground_truth": "B"}, "data_source": "mine", "extra_info": {"index": 0}}
        data = DataProto.from_dict(
            tensors={key: torch.tensor([values]) for key, values in row.items()},
            non_tensors={key: np.array([value], dtype=object) for key, value in fields.items()},
        )
        return asyncio.run(manager.run_single(data))

    return judge


@pytest.mark.parametrize("recipe", ["sppo", "tandem", "serl", "pasodoble", "step_ppo"])
def test_a_function_that_hangs_is_ended_and_counted_and_a_number_is_a_reward(recipe, judge):
    began = time.monotonic()
    verdict = from_verl(judge(recipe, "hangs")["reward_extra_info"])
    assert isinstance(verdict, Score) and (verdict.value, verdict.reason) == (0.0, "time_out")
    assert time.monotonic() - began < 60
    judged = judge(recipe, "number")
    assert judged["reward_score"] > 0 and from_verl(judged["reward_extra_info"]).acc == 1.0
