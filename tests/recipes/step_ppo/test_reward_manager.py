"""The reward manager on real verl data, against a scripted PRM server."""

import asyncio
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from verl import DataProto
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics

from recipes.core.reward_call import load_function
from recipes.step_ppo.agent_loop import StepRewardOutput
from recipes.step_ppo.reward_manager import StepRewardManager
from reward_fns.multiple_choice import compute_score
from reward_fns.result import Fail

sys.path.insert(0, str(Path(__file__).parent))
from scripted_server import Faults, closed_port, scripted_probabilities, serving
from trajectories import byte_level_tokenizer

RIGHT = " so it is\nObservation 1: it holds\nAction 1: Finish[The answer is B.]"


@pytest.fixture(scope="module")
def tokenizer():
    return byte_level_tokenizer()


def manager(tokenizer, url, tmp_path, **reward):
    config = OmegaConf.create(
        {
            "actor_rollout_ref": {"model": {"path": str(tmp_path)}},
            "algorithm": {},
            "reward": {"reward_model": {"model_path": "prm"}},
            "step_ppo": {
                "reward": reward,
                "prm": {"url": url, "model": "prm", "classes": [2, 3], "timeout": 0.4, "attempts": 2, "max_wait": 0.1},
            },
        }
    )
    return StepRewardManager(config, tokenizer, finish_score)


def finish_score(**kwargs):
    return compute_score(**kwargs, style="finish")


def rollout(tokenizer, text, *, eos=True, gold="B", padding=3):
    prompt = tokenizer("Options:\n\nThought 1:", add_special_tokens=False)["input_ids"]
    response = tokenizer(text, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id] * eos
    pad = [tokenizer.pad_token_id] * padding
    row = {
        "prompts": prompt + pad,
        "responses": response + pad,
        "attention_mask": [1] * len(prompt) + [0] * padding + [1] * len(response) + [0] * padding,
    }
    data = DataProto.from_dict(
        tensors={name: torch.tensor([values]) for name, values in row.items()},
        non_tensors={
            "reward_model": np.array([{"ground_truth": gold, "style": "rule"}], dtype=object),
            "data_source": np.array(["logiqa2"], dtype=object),
            "extra_info": np.array([{"index": 0}], dtype=object),
        },
    )
    return data, prompt, response


def score(manager_, data):
    async def run():
        try:
            return await manager_.run_single(data)
        finally:
            if manager_.endpoint is not None:
                await manager_.endpoint.close()

    return asyncio.run(run())


def test_rewards_stand_on_step_ends_with_the_prms_values(tokenizer, tmp_path):
    data, prompt, response = rollout(tokenizer, RIGHT)
    with serving() as (url, _):
        found = score(manager(tokenizer, url, tmp_path), data)
    info = found["reward_extra_info"]
    rows = scripted_probabilities(prompt + response)
    text_ends = [" so it is", " so it is\nObservation 1: it holds", RIGHT]
    expected = [0.0] * len(response)
    for text in text_ends:
        end = next(i for i in range(len(response)) if tokenizer.decode(response[: i + 1]).startswith(text))
        expected[end] = rows[len(prompt) + end][2] + rows[len(prompt) + end][3]
    assert info["token_rewards"] == pytest.approx(expected, abs=1e-9) and sum(e > 0 for e in expected) == 3
    assert found["reward_score"] == pytest.approx(sum(expected))
    assert (info["acc"], info["n_steps"], info["malformed"], info["skipped"], info["reason"]) == (
        1.0,
        3.0,
        0.0,
        0.0,
        "",
    )


@pytest.mark.parametrize(
    ("text", "eos", "reason"),
    [("", True, "empty"), ("\nAction 1: look up", True, "step_end_in_prompt"), (RIGHT, False, "truncated")],
)
def test_malformed_rollouts_earn_zero_and_ask_nobody(tokenizer, tmp_path, text, eos, reason):
    data, _, response = rollout(tokenizer, text, eos=eos)
    found = score(manager(tokenizer, closed_port(), tmp_path), data)
    assert found["reward_score"] == 0.0 and found["reward_extra_info"]["token_rewards"] == [0.0] * len(response)
    assert found["reward_extra_info"]["reason"] == reason and found["reward_extra_info"]["skipped"] == 0.0


@pytest.mark.parametrize("fault", ["503", "junk", "wrong shape", "nan", "slow", "hang up", "400"])
def test_a_broken_prm_is_a_skip_after_bounded_attempts(tokenizer, tmp_path, fault):
    data, *_ = rollout(tokenizer, RIGHT)
    with serving(Faults(every=fault)) as (url, faults):
        found = score(manager(tokenizer, url, tmp_path), data)
    info = found["reward_extra_info"]
    assert info["skipped"] == 1.0 and info["reason"].startswith("prm_") and info["acc"] == 1.0
    assert faults.count == (1 if fault == "400" else 2)


def test_a_prm_that_is_down_is_a_skip(tokenizer, tmp_path):
    data, *_ = rollout(tokenizer, RIGHT)
    assert score(manager(tokenizer, closed_port(), tmp_path), data)["reward_extra_info"]["skipped"] == 1.0


def test_a_passing_fault_is_no_skip(tokenizer, tmp_path):
    data, *_ = rollout(tokenizer, RIGHT)
    with serving(Faults(first=("503", 1))) as (url, _):
        assert score(manager(tokenizer, url, tmp_path), data)["reward_extra_info"]["skipped"] == 0.0


def test_outcome_only_asks_no_prm(tokenizer, tmp_path):
    for gold, value in (("B", 1.0), ("C", 0.0)):
        data, _, response = rollout(tokenizer, RIGHT, gold=gold)
        found = score(manager(tokenizer, None, tmp_path, mode="outcome"), data)
        assert found["reward_extra_info"]["token_rewards"] == [0.0] * (len(response) - 1) + [value]
    data, *_ = rollout(tokenizer, RIGHT, gold="")
    assert score(manager(tokenizer, None, tmp_path, mode="outcome"), data)["reward_extra_info"]["skipped"] == 1.0


def test_outcome_on_eos_beside_the_prm(tokenizer, tmp_path):
    data, _, response = rollout(tokenizer, RIGHT)
    with serving() as (url, _):
        found = score(manager(tokenizer, url, tmp_path, last_step="outcome", scale=0.5), data)
    rewards = found["reward_extra_info"]["token_rewards"]
    assert rewards[-1] == 1.0 and sum(r > 0 for r in rewards) == 3 and max(rewards[:-1]) <= 0.5


def test_the_outcome_alone_where_the_steps_are_centred(tokenizer, tmp_path):
    data, _, response = rollout(tokenizer, RIGHT)
    with serving() as (url, _):
        summed = score(manager(tokenizer, url, tmp_path, mode="mean"), data)
        found = score(manager(tokenizer, url, tmp_path, mode="mean", centre=True), data)
    assert found["reward_extra_info"]["token_rewards"] == [0.0] * (len(response) - 1) + [1.0]
    assert found["reward_score"] == 1.0
    assert found["reward_extra_info"]["process"] == pytest.approx(summed["reward_score"])
    data, *_ = rollout(tokenizer, RIGHT, gold="", eos=False)
    found = score(manager(tokenizer, closed_port(), tmp_path, centre=True), data)
    assert found["reward_extra_info"]["skipped"] == 1.0, "a malformed one whose outcome nobody knows"


def test_a_served_prm_with_fewer_classes_is_a_skip_that_says_so(tokenizer, tmp_path):
    data, *_ = rollout(tokenizer, RIGHT)
    with serving() as (url, _):
        one = manager(tokenizer, url, tmp_path)
        object.__setattr__(one.settings.prm, "classes", (3, 4))
        info = score(one, data)["reward_extra_info"]
    assert (
        info["skipped"] == 1.0
        and info["reason"] == "prm_classes: step_ppo.prm.classes is [3, 4], but the PRM has 4 classes"
    )


@pytest.mark.parametrize("last", ["step_end", "eos"])
def test_a_reward_function_scores_the_steps_without_a_prm(tokenizer, tmp_path, last):
    data, _, response = rollout(tokenizer, RIGHT)
    one = manager(tokenizer, None, tmp_path, values="function", last_step=last)
    one.compute_score = lambda **_: {"score": 1.0, "step_scores": [0.5, np.float32(-0.25), 1]}
    found = score(one, data)
    rewards = found["reward_extra_info"]["token_rewards"]
    assert [reward for reward in rewards if reward] == [0.5, -0.25, 1.0] and found["reward_score"] == 1.25
    assert bool(rewards[-1]) == (last == "eos") and found["reward_extra_info"]["acc"] == 1.0


@pytest.mark.parametrize("isolated", [False, True])
@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("[0.5, 1.0]", "step_scores: 2 for 3 steps"),
        ("[0.5, float('nan'), 1.0]", "step_scores_not_finite"),
        ("0.5", "step_scores_not_finite"),
        ("None", "step_scores: none for 3 steps"),
    ],
)
def test_step_scores_that_do_not_fit_are_a_skip(tokenizer, tmp_path, given, reason, isolated):
    data, *_ = rollout(tokenizer, RIGHT)
    one = manager(tokenizer, None, tmp_path, values="function")
    file = tmp_path / "rewards.py"
    file.write_text(f"def compute_score(**_):\n    return {{'score': 1.0, 'step_scores': {given}}}\n")
    one.path, one.name = str(file), "compute_score"
    one.compute_score = load_function(str(file), "compute_score")
    if not isolated:
        one._isolated = lambda: False
    info = score(one, data)["reward_extra_info"]
    assert (info["skipped"], info["reason"]) == (1.0, reason) and not any(info["token_rewards"])


@pytest.mark.parametrize("verdict", [RuntimeError("no such row"), Fail("the judge is gone"), "not a number"])
def test_a_reward_function_that_fails_is_a_skip_only_where_it_counts(tokenizer, tmp_path, verdict):
    """verl would end the whole group of a prompt whose reward manager raises, past every budget."""

    def failing(**_):
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    data, _, response = rollout(tokenizer, RIGHT)
    with serving() as (url, _):
        cases = [
            (manager(tokenizer, None, tmp_path, mode="outcome"), 1.0),
            (manager(tokenizer, url, tmp_path, last_step="outcome"), 1.0),
            (manager(tokenizer, url, tmp_path), 0.0),
        ]
        for one, skipped in cases:
            one.compute_score = failing
            info = score(one, data)["reward_extra_info"]
            assert info["skipped"] == skipped and info["acc"] == 0.0
            assert bool(info["reason"]) == bool(skipped) and len(info["token_rewards"]) == len(response)
            assert any(info["token_rewards"]) != bool(skipped)


def test_a_prm_must_be_named(tokenizer, tmp_path):
    with pytest.raises(ValueError, match="need a PRM"):
        manager(tokenizer, None, tmp_path)


def test_the_agent_loops_output_carries_the_rewards_to_their_tokens():
    output = StepRewardOutput(
        prompt_ids=[1, 2], response_ids=[3, 4, 5], response_mask=[1, 1, 1], metrics=AgentLoopMetrics(),
        extra_fields={"reward_extra_info": {"token_rewards": [0.0, 0.7, -0.1], "acc": 1.0}}, reward_score=0.6,
    )  # fmt: skip
    found = output.as_dict()
    torch.testing.assert_close(found["rm_scores"], torch.tensor([0.0, 0.7, -0.1]))
    assert found["extra_fields"] == {"reward_extra_info": {"acc": 1.0}}
    output.extra_fields["reward_extra_info"]["token_rewards"] = [0.0]
    with pytest.raises(ValueError, match="1 token rewards for 3"):
        output.as_dict()
