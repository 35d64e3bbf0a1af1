"""The experiment on Proposers: its notes and questions, who trains on what, and a page that says what the logs say."""

from collections import Counter
from pathlib import Path

import notes
import pasodoble
import pytest
import self_play
import torch
from policy import Responses

PAGE = Path(pasodoble.__file__).parent / "pasodoble.md"


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_golds_by_hand():
    assert notes.gold_of("b739", "7394") == "9" and notes.gold_of("d000", "0005") == "0"
    assert notes.gold_of("u739", "7394") == "4" and notes.gold_of("v739", "7397") == "1"


def test_a_question_is_about_its_note_and_an_answer_has_a_form():
    assert notes.parsed("b739", "7394", "abcdu") == "b739"
    assert not any(notes.parsed(text, "7394", "abcdu") for text in ("b738", "v739", "739b", "b73", ""))
    assert notes.answer_of("b739", "73099") == "9" and notes.answer_of("u739", "9") == "9"
    assert notes.answer_of("b739", "9") == notes.answer_of("u739", "73099") == ""


@pytest.mark.parametrize("kind", notes.ANSWERABLE)
def test_share_of_right_demonstrations_against_enumeration(kind):
    """Over all digits, orders and slips; a demonstration that is right twice, or wrong twice to the same effect."""
    demonstrations = notes.Demonstrations(3, [kind])
    slip = notes.KINDS[kind].slip
    right = 0.0
    for a in range(10):
        for b in range(10):
            for c in range(10):
                off = demonstrations.offsets.get((kind, a, b), 0)
                for first, chance in {off: slip if off else 1.0, 0: 1 - slip if off else 1.0}.items():
                    second = demonstrations.offsets.get((kind, (a + b + first) % 10, c), 0)
                    for one, other in {second: slip if second else 1.0, 0: 1 - slip if second else 1.0}.items():
                        right += chance * other * ((first + one) % 10 == 0) / 1000
    generator, number = seeded(), 3000
    pairs = [demonstrations(generator) for _ in range(number)]
    found = sum(notes.answer_of(prompt[:-1], text) == notes.gold_of(prompt[:-1], "") for prompt, text in pairs)
    assert found / number == pytest.approx(right, abs=4 * 0.5 / number**0.5)


def test_a_proposer_writes_valid_questions_in_the_shares():
    generator = seeded()
    pairs = [notes.proposal("u", generator) for _ in range(2000)]
    assert all(notes.parsed(text, prompt[:-1], "abcdu") for prompt, text in pairs)
    kinds = Counter(text[0] for _, text in pairs)
    assert kinds["a"] / 2000 == pytest.approx(0.55, abs=0.05) and kinds["u"] / 2000 == pytest.approx(0.3, abs=0.05)


def test_held_out_digits_are_not_in_the_notes():
    generator = seeded()
    assert not {notes.draw_note(generator)[:3] for _ in range(500)} & set(notes.HELD_OUT)


def scripted(monkeypatch, texts):
    """A Solver whose responses are given: (question, number) -> text."""

    def answer(solver, alphabet, prompts, **_):
        seen = Counter()
        written = []
        for prompt in prompts:
            written.append(texts(prompt, seen[prompt]))
            seen[prompt] += 1
        size = (len(prompts), 6)
        return Responses(
            alphabet.encode(prompts), torch.ones(size), torch.ones(size).bool(), torch.zeros(size), written
        )

    monkeypatch.setattr(self_play, "sample", answer)


def test_a_round_goes_by_the_recipes_rewards_and_filter(monkeypatch):
    """Six questions on "739?" with 0, 1, 2, 5, 6 right of 6 and an unparsed one."""
    right = {"a": 0, "b": 1, "c": 2, "d": 5, "u": 6}
    scripted(monkeypatch, lambda prompt, n: ("4" if prompt[0] == "u" else "73099") if n < right[prompt[0]] else "0")
    asked = self_play.ask(None, [*(kind + "739" for kind in right), ""], ["7394"] * 6, 6, seeded())
    assert [sum(verdicts) for verdicts in asked.verdicts] == [0, 1, 2, 5, 6, 0]
    (found,) = self_play.scored(asked, self_play.DiversityHistory(), self_play.RoundSettings(reward="pasodoble"))
    assert found.faults == (None,) * 5 + ("missing",)
    assert found.rewards == pytest.approx((0, 0, 1.3 - 1 / 3, 1.3 - 5 / 6, 0.3, 0))
    assert found.solver_indices == (2, 3)


def test_the_oracle_asks_what_is_nearest_to_one_half(monkeypatch):
    number = self_play.CANDIDATES * self_play.NOTES * self_play.PROPOSALS
    questions = [f"{'abcu'[place % 4]}{place:03}" for place in range(number)]
    monkeypatch.setattr(self_play, "propose", lambda *_: (questions, ["0000"] * number, None))
    rates = {"a": 8, "b": 5, "c": 1}
    scripted(
        monkeypatch, lambda prompt, n: "0000" + notes.gold_of(prompt[:-1], "") if n < rates[prompt[0]] else "wrong"
    )
    chosen, _ = self_play.chosen_by_oracle(None, None, "ten answers", seeded())
    asked_for = self_play.NOTES * self_play.PROPOSALS
    assert len(chosen) == asked_for and {question[0] for question in chosen} == {"b"}


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(self_play, "PROPOSER_WARM_UP", 60)
    monkeypatch.setattr(pasodoble, "EVALUATE", 2)
    return {"world": "ten answers", "seed": 1, "rate": 3e-4, "proposer_rate": 1e-3, "warm_up": 100, "steps": 2}


@pytest.mark.parametrize("arm", self_play.ARMS)
def test_who_is_trained(quick, arm):
    game = self_play.Game(quick | {"arm": arm})
    before = [[p.clone() for p in model.parameters()] for model in (game.solver, game.proposer)]
    for _ in range(2):
        game.step()
    changed = [
        any(not torch.equal(*pair) for pair in zip(own, model.parameters(), strict=True))
        for own, model in zip(before, (game.solver, game.proposer), strict=True)
    ]
    counts = self_play.counts_of(game.seen)
    assert changed == [bool(counts["trained"]), arm in self_play.TRAINED]
    assert sum(counts["proposed"].values()) == sum(counts["band"].values()) > 0
    assert sum(counts["passed"].values()) >= sum(counts["trained"].values())


def test_a_proposer_learns_which_kind_pays(quick, monkeypatch):
    """Where only kind b is answered, and half the time, the Proposer comes to ask it.

    It begins with all kinds alike: of a kind that is asked twice in a batch, chance decides whether it is seen again.
    """
    sample = self_play.sample

    def answer(model, alphabet, prompts, **options):
        responses = sample(model, alphabet, prompts, **options)
        if prompts[0].endswith("="):
            texts = ["0000" + notes.gold_of(p[:-1], "") if p[0] == "b" and n % 2 else "" for n, p in enumerate(prompts)]
            return Responses(responses.prompts, responses.ids, responses.mask, responses.log_probs, texts)
        return responses

    monkeypatch.setattr(self_play, "PROPOSER_WARM_UP", 100)
    monkeypatch.setattr(notes, "SHARES", dict.fromkeys(notes.ANSWERABLE, 0.2))
    game = self_play.Game(quick | {"arm": "pasodoble", "proposer_rate": 5e-4})
    monkeypatch.setattr(self_play, "sample", answer)
    shares = []
    for _ in range(40):
        game.seen.clear()
        game.batch()
        proposed = self_play.counts_of(game.seen)["proposed"]
        shares.append(proposed.get("b", 0) / sum(proposed.values()))
    assert sum(shares[-10:]) / 10 > sum(shares[:10]) / 10 + 0.15


def test_every_start_covers_the_pass_rates():
    for setting, records in pasodoble.read_all(pasodoble.FOLDER):
        start = records[0]["kinds"]
        assert start["a"] > 0.8 and start["d"] < 0.3, setting["name"]
        assert start["a"] > start["b"] > start["c"] > start["d"], setting["name"]


def test_all_arms_had_the_same_start_and_the_same_number_of_trained_questions():
    runs = pasodoble.read_all(pasodoble.FOLDER)
    for seed in pasodoble.SEEDS:
        own = [(setting, records) for setting, records in runs if setting["seed"] == seed]
        assert {(setting["world"], setting["arm"]) for setting, _ in own} == set(pasodoble.CELLS)
        assert len({records[0]["greedy"] for _, records in own}) == 1
    most = pasodoble.STEPS * self_play.QUESTIONS
    assert all(0.8 * most < pasodoble.total(records, "trained") <= most for _, records in runs)


@pytest.mark.parametrize(
    "trained, oracle, verdict",
    [(5.0, 9.0, "holds"), (0.0, 9.0, "fails"), (-5.0, 9.0, "fails"), (0.0, 0.0, "is not tested")],
)
def test_the_conclusion_can_come_out_either_way(trained, oracle, verdict):
    lead = {"pasodoble": trained, "oracle": oracle, "frozen": 0.0}
    runs = [
        (
            {"world": world, "arm": arm, "seed": seed},
            [{"kinds": dict.fromkeys("abcd", 0.5)}, {"kinds": dict.fromkeys("abcd", 0.5 + (lead[arm] + noise) / 100)}],
        )
        for world in pasodoble.WORLDS
        for arm in lead
        for seed, noise in enumerate(
            {"pasodoble": [0.1, 0.2, 0.3], "oracle": [0.3, 0.1, 0.2]}.get(arm, [0.2, 0.3, 0.1])
        )
    ]
    assert pasodoble.conclusion(runs).count(f"claim {verdict}") == len(pasodoble.WORLDS)


def test_the_recipe_leads_with_the_conclusion():
    readme = (PAGE.parents[2] / "recipes" / "pasodoble" / "README.md").read_text(encoding="utf-8")
    assert pasodoble.report().splitlines()[-1] in readme


def test_the_page_says_what_the_logs_say():
    assert pasodoble.report() in PAGE.read_text(encoding="utf-8")
