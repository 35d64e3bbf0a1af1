"""The report joins states with the PRM's step scores by where they end, and reads verl's own log."""

import json

import pytest
import torch

from recipes.step_ppo.labels import StateSampling, state_records
from recipes.step_ppo.pipeline import report

TEXT = "Ann is Mon.\nAction 1: Find Ben.\nObservation 1: one after Mon is Tue.\nAction 2: Finish[The answer is A.]"


def files(values: dict[str, int], completions: int, text: str = TEXT):
    trajectory = {
        "key": "7",
        "id": "7",
        "responses": [{"text": "x", "correct": False}, {"text": text, "correct": True}],
    }
    states = [s for s in state_records(trajectory, StateSampling(ratio=1.0, ratio_s=0.0), 0) if s["response_index"]]
    found = [
        {**state, "value": values[state["kind"]], "num_completions": completions, "prefix_length": len(state["prefix"])}
        for state in states
    ]
    # Steps of the response: first thought, action, observation, finish.
    tables = [[1, 0, 0, 0], [0, 0, 1, 0], [0.5, 0, 0, 0.5], [0, 0, 0, 1]]
    kinds = ["Thought", "Action", "Observation", "Action"]
    scored = {"response_index": 1, "kinds": kinds, "step_scores": [0.0, 1.0, 0.5, 1.0], "probabilities": tables}
    scores = {"id": "7", "scores": [scored]}
    return [trajectory], [scores], found


def test_a_state_meets_the_score_of_the_step_it_ends_with():
    trajectories, scores, values = files({"Action": 12, "Observation": 4}, 16)
    expected, observed, left_out = report.states_beside_scores(trajectories, scores, values)
    assert left_out == 0
    assert expected.tolist() == pytest.approx([2 / 3, 0.5]) and observed.tolist() == pytest.approx([0.75, 0.25])


def test_a_state_whose_step_goes_on_after_its_line_is_left_out_and_counted():
    longer = TEXT.replace("Mon is Tue.", "Mon is Tue.\n so it is.")
    trajectories, scores, values = files({"Action": 12, "Observation": 4}, 16, text=longer)
    expected, observed, left_out = report.states_beside_scores(trajectories, scores, values)
    assert observed.tolist() == [0.75] and expected.tolist() == pytest.approx([2 / 3]) and left_out == 1


def test_in_maths_every_line_is_a_state_of_its_own():
    text = "First, 2 + 3 = 5.\n\nThen 5 * 2 = 10.\nSo \\boxed{10}."
    trajectory = {"key": "7", "id": "7", "responses": [{"text": text, "correct": True}]}
    states = state_records(trajectory, StateSampling(ratio=1.0, ratio_s=0.0, style="lines"), 0)
    values = [
        {**s, "value": 1 + 2 * s["step"], "num_completions": 4, "prefix_length": len(s["prefix"])} for s in states
    ]
    tables = [[1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    scores = {"id": "7", "scores": [{"response_index": 0, "kinds": ["Line"] * 3, "probabilities": tables}]}
    expected, observed, left_out = report.states_beside_scores([trajectory], [scores], values)
    assert expected.tolist() == pytest.approx([0, 2 / 3]) and observed.tolist() == [0.25, 0.75] and left_out == 0


@pytest.mark.parametrize("text", ["SFT=50", "SFT=-0.1", "SFT=nan", "SFT", "=0.5", "SFT=half"])
def test_a_measured_accuracy_is_a_share(text):
    assert report.measured_accuracy("SFT=0.5") == ("SFT", 0.5)
    with pytest.raises(ValueError, match=r"expected NAME=SHARE with a share in \[0, 1\]"):
        report.measured_accuracy(text)


def test_agreement():
    expected, observed = torch.tensor([0.9, 0.2, 0.6, 0.1]), torch.tensor([1.0, 0.0, 0.25, 0.5])
    found = report.agreement(expected, observed)
    assert found["count"] == 4 and found["accuracy"] == 0.75
    centred = expected - expected.mean(), observed - observed.mean()
    by_hand = (centred[0] * centred[1]).sum() / (centred[0].norm() * centred[1].norm())
    assert found["correlation"] == pytest.approx(by_hand.item(), abs=1e-6)
    assert report.agreement(torch.full((3,), 0.5), torch.rand(3))["correlation"] == 0.0
    with pytest.raises(ValueError, match="at least two"):
        report.agreement(expected[:1], observed[:1])


def test_scores_of_other_trajectories_are_refused():
    trajectories, scores, values = files({"Action": 12, "Observation": 4}, 16)
    fewer = [{**trajectories[0], "responses": trajectories[0]["responses"][:1]}]
    other = [{**trajectories[0], "id": "8"}]
    for found in (fewer, other):
        with pytest.raises(ValueError, match="ends at no line of a scored response"):
            report.states_beside_scores(found, scores, values)
    values[0]["value"] = None
    assert len(report.states_beside_scores(trajectories, scores, values)[0]) == 1, "a state without a value"
    values[1]["prefix_length"] -= 1
    with pytest.raises(ValueError, match="ends at no line of a scored response"):
        report.states_beside_scores(trajectories, scores, values)
    values[1]["prefix_length"] += 1
    scores[0]["scores"][0]["probabilities"].pop()
    with pytest.raises(ValueError, match="has 4 steps, 3 of them"):
        report.states_beside_scores(trajectories, scores, values)


def test_the_whole_report(tmp_path, capsys):
    trajectories, scores, values = files({"Action": 12, "Observation": 4}, 16)
    pairs = [
        {"key": key, "id": "7", "kind": kind, "chosen": "x", "reject": "y"}
        for key, kind in (("a", "contrastive"), ("b", "contrastive"), ("c", "positive"))
    ]
    keyed = {
        "trajectories": trajectories, "scores": [{"key": "7", **scores[0]}], "pairs": pairs, "dev_truth": values
    }  # fmt: skip
    for name, records in keyed.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    log = [
        {"step": step, "data": {"val-core/toy/acc/mean@1": accuracy, "val-aux/toy/n_steps/mean@1": 9.0, "x": 1}}
        for step, accuracy in ((0, 0.5), (20, 0.75))
    ]
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))
    arguments = ["--round", str(tmp_path), "--truth", str(tmp_path / "dev_truth.jsonl"), "--accuracy", "warm-up=0.4"]
    arguments += ["--run", f"step-PPO={tmp_path / 'm.jsonl'}", "--start", "process-DPO", "--held-out", "500"]
    report.main([*arguments, "--output", str(tmp_path / "report")])
    printed = capsys.readouterr().out
    assert printed == (tmp_path / "report" / "report.md").read_text()
    assert "| warm-up | 40.0 |" in printed and "| process-DPO | 50.0 |" in printed and "| step-PPO | 75.0 |" in printed
    assert "2 contrastive, 1 positive-positive" in printed
    written = json.loads((tmp_path / "report" / "report.json").read_text())
    found = written["accuracies"]["step-PPO"]
    # Half width of a binomial interval: 1.96 sqrt(.75 x .25 / 500).
    assert found["high"] - found["mean"] == pytest.approx(0.038, abs=0.004)
    assert (tmp_path / "report" / "calibration.png").stat().st_size > 1000


def test_a_log_without_validation_is_refused(tmp_path):
    (tmp_path / "m.jsonl").write_text('{"step": 1, "data": {"critic/score/mean": 1.0}}\n')
    with pytest.raises(ValueError, match="no validation accuracy"):
        report.accuracy_curve(tmp_path / "m.jsonl")
