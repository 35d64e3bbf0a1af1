"""The experiment on SPPO: each arm's loss pulls the right way, learns, and the page says what the logs say."""

import math
import statistics
from pathlib import Path

import pytest
import sppo
import torch
from policy import Responses

PAGE = Path(sppo.__file__).parent / "sppo.md"


@pytest.mark.parametrize("arm", (sppo.ARMS | sppo.STRENGTHS).values(), ids=str)
def test_a_right_response_becomes_more_likely_and_a_wrong_one_less(arm):
    old = torch.full((5, 3), -1.0)
    mask = torch.tensor([[True, True, False]] * 5)
    responses = Responses(torch.zeros(5, 1), torch.ones(5, 3), mask, old, [""] * 5)
    new = old.clone().requires_grad_()
    rows = torch.arange(5)
    loss = sppo.loss_of(arm, torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0]), [0] * 5, responses)
    loss(rows, new).backward()
    assert (new.grad[:2, :2] < 0).all() and (new.grad[2:, :2] > 0).all() and (new.grad[:, 2] == 0).all()


def target_of(arm, rewards):
    """Where the loss of a group of responses of one token is least, one response at a time."""
    number = len(rewards)
    old, mask = torch.zeros(number, 1), torch.ones(number, 1).bool()
    responses = Responses(torch.zeros(number, 1), torch.ones(number, 1), mask, old, [""] * number)
    new = old.clone().requires_grad_()
    sppo.loss_of(arm, torch.tensor(rewards), [0] * number, responses)(torch.arange(number), new).backward()
    return (-new.grad[:, 0] * number / 2).tolist()


@pytest.mark.parametrize("eta", [sppo.ETA, *sppo.OTHER_ETAS])
def test_eta_is_the_distance_between_the_targets_of_right_and_wrong(eta):
    right, wrong = target_of(sppo.Arm("soft", 1, eta), [1.0, 0.0])
    assert right - wrong == pytest.approx(eta)
    assert right == pytest.approx(eta - math.log((math.exp(eta) + 1) / 2))


def test_the_paper_mode_regresses_on_half_the_centred_reward():
    """At the old policy the loss is the mean square of eta (P_hat - 1/2); binary win rates of 1 1 0 0 0 by hand."""
    old, mask = torch.zeros(5, 1), torch.ones(5, 1).bool()
    responses = Responses(torch.zeros(5, 1), torch.ones(5, 1), mask, old, [""] * 5)
    loss = sppo.loss_of(sppo.ARMS["sppo paper K=5"], torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0]), [0] * 5, responses)
    assert float(loss(torch.arange(5), old)) == pytest.approx((2 * 0.3**2 + 3 * 0.2**2) / 5)


@pytest.mark.parametrize("arm, updates", [("sppo n=1", 4), ("grpo n=8", 4)])
def test_an_arm_learns(monkeypatch, arm, updates):
    monkeypatch.setattr(sppo, "WRONG", 0)
    setting = {"arm": arm, "updates": updates, "seed": 1, "rate": 3e-4, "steps": 10, "warm_up": 100}
    records = list(sppo.train(setting))
    assert [record["step"] for record in records] == [0, 5, 10]
    assert records[-1]["greedy"] > records[0]["greedy"] + 0.08


def test_all_arms_had_the_same_start_and_the_same_data():
    runs = sppo.read_all(sppo.FOLDER)
    for seed in sppo.SEEDS:
        own = [(setting, records) for setting, records in runs if setting["seed"] == seed]
        assert {(setting["arm"], setting["updates"]) for setting, _ in own} == {
            (arm, updates) for arm in sppo.ARMS | sppo.STRENGTHS for updates in sppo.UPDATES
        }
        assert len({records[0]["greedy"] for _, records in own}) == 1
    assert all(sppo.BATCH % arm.group == 0 for arm in sppo.ARMS.values())
    assert all(sppo.BATCH % updates == 0 for updates in sppo.UPDATES)
    assert 0.1 < statistics.fmean(records[0]["greedy"] for _, records in runs) < 0.67


@pytest.mark.parametrize(
    "lead, verdict",
    [
        ({2: 5.0, 16: 5.0}, "holds: of 4 matched pairs SPPO is ahead in 4"),
        ({2: 5.0, 16: 0.0}, "is not confirmed: of 4 matched pairs SPPO is ahead in 2 and behind in 0"),
        ({2: 0.0, 16: -5.0}, "is not confirmed: of 4 matched pairs SPPO is ahead in 0 and behind in 2"),
    ],
)
def test_the_conclusion_can_come_out_either_way(lead, verdict):
    runs = [
        (
            {"arm": arm, "updates": updates, "seed": seed},
            [{"step": 0}, {"step": 5, "greedy": 0.5 + (arm.startswith("sppo") * lead[updates] + noise) / 100}],
        )
        for arm in sppo.ARMS
        for updates in sppo.UPDATES
        for seed, noise in enumerate([0.1, -0.1, 0.2] if arm.startswith("sppo") else [-0.1, 0.2, 0.1])
    ]
    games = [({"preference": kind}, [{"average_gap": gap}]) for kind in sppo.PREFERENCES for gap in (0.1, 0.2)]
    assert verdict in sppo.conclusion(runs, games)


def test_the_recipe_leads_with_the_conclusion():
    readme = (PAGE.parents[2] / "recipes" / "sppo" / "README.md").read_text(encoding="utf-8")
    assert sppo.report().splitlines()[-1] in readme


def test_the_page_says_what_the_logs_say():
    assert sppo.report() in PAGE.read_text(encoding="utf-8")
