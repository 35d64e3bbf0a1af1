"""Win rates from a judge, through the group hook and a scripted endpoint, down to SPPO's target."""

import importlib.util
from pathlib import Path

import pytest
import torch

from recipes.core.groups import Group, Sample
from recipes.sppo.advantage import sppo_target
from recipes.sppo.judged_gains import judge_win_rates
from reward_fns.judge import Judge
from reward_fns.result import Fail, Score, Skip

spec = importlib.util.spec_from_file_location(
    "judge_server", Path(__file__).parents[2] / "reward_fns" / "judge_server.py"
)
judge_server = importlib.util.module_from_spec(spec)
spec.loader.exec_module(judge_server)


def group(*responses):
    fields = {"raw_prompt": [{"role": "user", "content": "Which is the largest?"}]}
    samples = [Sample(f"u_{i}_0", text, Score(0.0), 1, fields) for i, text in enumerate(responses)]
    return Group("u", samples)


def ask(step, *groups):
    """The hook's metrics, and what the endpoint was asked."""
    with judge_server.serving(step) as (url, script):
        metrics = judge_win_rates(groups, base_url=url, model="m", attempts=1, timeout=20.0)
    return metrics, script.requests


def test_the_best_of_three_wins_both_comparisons():
    judged = group("2", "9", "4")
    metrics, _ = ask(judge_server.prefers(int), judged)
    rates = [sample.result.value for sample in judged.samples]
    assert rates == pytest.approx([0.5 / 3, 2.5 / 3, 1.5 / 3])
    assert metrics == {"sppo/judged_share": 1.0}
    target = sppo_target(torch.tensor(rates), ["u"] * 3, eta=2.0, scope="prompt", baseline="half")
    assert target.tolist() == pytest.approx([2 * (rate - 0.5) for rate in rates])
    assert float(target.sum()) == pytest.approx(0.0, abs=1e-6)


def test_an_endpoint_that_answers_nonsense_skips_the_group():
    judged = group("2", "9")
    ask(judge_server.says("I cannot decide."), judged)
    assert all(isinstance(sample.result, Skip) for sample in judged.samples)


def test_a_response_that_was_skipped_is_not_compared():
    judged = group("2", "9", "4")
    judged.samples[1].result = Skip("no_gold")
    _, requests = ask(judge_server.prefers(int), judged)
    assert isinstance(judged.samples[1].result, Skip)
    assert [sample.result.value for sample in judged.samples[::2]] == [0.25, 0.75]
    assert len(requests) == 2


def test_a_wrong_key_is_a_fail():
    judged = group("2", "9")
    ask(judge_server.status(401), judged)
    assert all(isinstance(sample.result, Fail) for sample in judged.samples)


def test_without_a_response_to_compare_the_share_is_zero():
    judged = group("2", "9")
    for sample in judged.samples:
        sample.result = Skip("no_gold")
    metrics, requests = ask(judge_server.prefers(int), judged)
    assert metrics == {"sppo/judged_share": 0.0} and requests == []
    assert ask(judge_server.prefers(int))[0] == {"sppo/judged_share": 0.0}


def test_the_share_counts_the_responses_of_groups_that_failed():
    judged, failed = group("2", "9"), group("4", "5", "6")
    for sample in failed.samples:
        sample.fields = {"raw_prompt": [{"role": "user", "content": "Which is undecidable?"}]}

    async def step(request, body):
        undecidable = "undecidable" in body["messages"][1]["content"]
        return await (judge_server.says("I cannot decide.") if undecidable else judge_server.prefers(int))(
            request, body
        )

    metrics, _ = ask(step, judged, failed)
    assert metrics == {"sppo/judged_share": 0.4}
    assert [sample.result.value for sample in judged.samples] == [0.25, 0.75]


def test_the_judge_reads_the_users_turns_and_not_the_system_prompt():
    judged = group("2", "9")
    turns = [("system", "Be brief."), ("user", "First part."), ("assistant", "Yes?"), ("user", "Second part.")]
    for sample in judged.samples:
        sample.fields = {"raw_prompt": [{"role": role, "content": content} for role, content in turns]}
        sample.result = Score(0.0, acc=1.0, pred=sample.response)
    _, requests = ask(judge_server.prefers(int), judged)
    for body in requests:
        text = body["messages"][1]["content"]
        assert "First part.\n\nSecond part." in text and "Be brief." not in text and "Yes?" not in text
    assert [(sample.result.acc, sample.result.pred) for sample in judged.samples] == [(1.0, "2"), (1.0, "9")]


def test_a_response_alone_ties_with_itself_and_the_connections_are_closed(monkeypatch):
    closed, close = [], Judge.close

    async def spy(judge):
        closed.append(judge)
        await close(judge)

    monkeypatch.setattr(Judge, "close", spy)
    judged = group("2")
    metrics, requests = ask(judge_server.prefers(int), judged)
    assert judged.samples[0].result.value == 0.5 and metrics == {"sppo/judged_share": 1.0} and requests == []
    assert len(closed) == 1
