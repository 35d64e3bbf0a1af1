"""Settings of the preference losses, and the rows TRL reads."""

import json
import math

import pytest

from recipes.errors import DataError
from recipes.step_ppo.pipeline.data import Question
from recipes.step_ppo.pipeline.dpo import loss_settings, preference_rows, published_pairs


def log_sigmoid(x):
    return -math.log1p(math.exp(-x))


def trl_loss(settings, x):
    """TRL's per-pair losses (trl/trainer/dpo_trainer.py), at x = beta times the difference of log-ratios."""
    h = settings.get("label_smoothing", 0.0)
    terms = {
        "sigmoid": -log_sigmoid(x),
        "hinge": max(0.0, 1 - x),
        "robust": (-(1 - h) * log_sigmoid(x) + h * log_sigmoid(-x)) / (1 - 2 * h),
    }
    weights = settings.get("loss_weights") or [1.0] * len(settings["loss_type"])
    return sum(weight * terms[name] for weight, name in zip(weights, settings["loss_type"], strict=True))


@pytest.mark.parametrize("smoothing", [0.0, 0.05, 0.1, 0.3, 0.49])
@pytest.mark.parametrize("x", [-3.0, -0.2, 0.0, 0.7, 4.0])
def test_label_smoothing_is_cdpo(smoothing, x):
    settings = loss_settings("sigmoid", beta=0.1, label_smoothing=smoothing)
    expected = -(1 - smoothing) * log_sigmoid(x) - smoothing * log_sigmoid(-x)
    assert trl_loss(settings, x) == pytest.approx(expected, abs=1e-12)


def test_other_losses():
    assert loss_settings("hinge", beta=0.5) == {"loss_type": ["hinge"], "beta": 0.5}
    assert loss_settings("ipo") == {"loss_type": ["ipo"], "beta": 0.1}
    for bad in (
        {"loss": "rpo"},
        {"loss": "hinge", "label_smoothing": 0.1},
        {"loss": "sigmoid", "label_smoothing": 0.5},
    ):
        with pytest.raises(ValueError):
            loss_settings(**bad)


def test_rows_are_distinct_and_complete():
    questions = {"0": Question("0", "Q\n\nThought 1:", "A", "toy", "react")}
    pairs = [{"id": "0", "chosen": f"c{i}", "reject": f"r{i}"} for i in range(3)]
    rows = preference_rows(questions, pairs, None)
    assert [(row["chosen"], row["rejected"]) for row in rows] == [(" c0", " r0"), (" c1", " r1"), (" c2", " r2")]
    rows[0]["chosen"] = "overwritten"
    assert rows[1]["chosen"] == " c1" and pairs[0]["chosen"] == "c0" and len({id(row) for row in rows}) == 3
    with pytest.raises(ValueError, match="question 7"):
        preference_rows(questions, [{"id": "7", "chosen": "c", "reject": "r"}], None)
    with pytest.raises(ValueError, match="no pair"):
        preference_rows(questions, [], None)


def test_pairs_that_the_published_code_wrote(tmp_path):
    item = {"id": 7, "chosen": " Because.\n", "reject": "So.", "chosen_reward": 0.9, "reject_full_rewards": [[0.1]]}
    (tmp_path / "pairs.json").write_text(json.dumps([item]))
    assert published_pairs(tmp_path / "pairs.json") == [{"id": "7", "chosen": "Because.", "reject": "So."}]
    for wrong in ({"chosen": "a", "reject": "b"}, item | {"reject": ""}, item | {"chosen": ["a"]}):
        (tmp_path / "wrong.json").write_text(json.dumps([item, wrong]))
        with pytest.raises(DataError, match=r"wrong.json, item 1: expected 'id', and texts 'chosen' and 'reject'"):
            published_pairs(tmp_path / "wrong.json")
