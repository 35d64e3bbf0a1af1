"""The tandem experiment: its world, who writes what, what is trained, and the page against the kept logs."""

import itertools
import re

import pytest
import readability
import tandem
import torch
import two_styles
from policy import make_model, padded, sample
from two_styles import ALPHABET, JUNIOR, SENIOR, Writer, demonstrate, is_right, share_of_a

from recipes.tandem.authorship import verified
from vllm_patches.tandem.schedule import ScheduleParams


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_demonstrations_without_errors_are_right_in_every_style():
    writer = Writer(starts_in_a=0.5, stays=0.7, errors=(0.0, 0.0))
    generator = seeded()
    pairs = [demonstrate(writer, generator) for _ in range(200)]
    assert all(is_right(*pair) for pair in pairs)
    assert {share_of_a(text) for _, text in pairs} >= {0.0, 1.0, 0.5}


@pytest.mark.parametrize(("writer", "error"), [(JUNIOR, JUNIOR.errors[0]), (Writer(1.0, 1.0, (0.5, 0.0)), 0.5)])
def test_accuracy_of_demonstrations_against_enumeration(writer, error):
    """Sums of shifts that are 0 with probability 1 - error, else uniform over the four others, modulo five."""
    enumerated = sum(
        torch.tensor([1 - error if shift == 0 else error / 4 for shift in shifts]).prod().item()
        for shifts in itertools.product(range(5), repeat=two_styles.DIGITS - 1)
        if sum(shifts) % 5 == 0
    )
    generator = seeded(1)
    found = sum(is_right(*demonstrate(writer, generator)) for _ in range(4000)) / 4000
    assert found == pytest.approx(enumerated, abs=4 * 0.5 / 4000**0.5)


def test_habits_of_the_writers():
    generator = seeded(2)
    assert all(share_of_a(demonstrate(JUNIOR, generator)[1]) == 1 for _ in range(50))
    first = [demonstrate(SENIOR, generator)[1][0].islower() for _ in range(2000)]
    assert sum(first) / 2000 == pytest.approx(0.6, abs=0.05)


def test_what_counts_as_right():
    assert is_right("12340=", "cd;da;ab;ab;#0")
    assert is_right("12340=", "#0")
    assert not is_right("12340=", "cd;da;ab;ab;#1")
    assert not is_right("12340=", "#0#0") and not is_right("12340=", "cd;0") and not is_right("12340=", "#00")
    assert share_of_a("aB;#0") == 0.5 and share_of_a("#0") is None


@pytest.mark.parametrize("strategy", ["word", "sentence"])
def test_the_mask_is_the_one_that_the_recipe_recomputes(strategy):
    senior, junior = (make_model(ALPHABET, seed=seed, width=16, layers=1) for seed in (0, 1))
    prompts = [two_styles.make_prompt(seeded(3))] * 20
    schedules = two_styles.schedules_of(strategy, 0.5, 5, range(20))
    responses, mask = two_styles.write_jointly(senior, junior, prompts, schedules, seeded())
    boundary = two_styles.WORDS if strategy == "word" else two_styles.SENTENCE_ENDS
    for row in range(20):
        length = int(responses.mask[row].sum())
        ids, authors = responses.ids[row, :length].tolist(), mask[row, :length].int().tolist()
        verified(authors, ids, ScheduleParams(strategy, 0.5, seed=5, request=row), boundary)
    assert not (mask & ~responses.mask).any()
    assert 0.3 < mask.sum() / responses.mask.sum() < 0.7 or strategy == "sentence"


def test_alone_at_probability_one_and_absent_at_zero():
    senior, junior = (make_model(ALPHABET, seed=seed, width=16, layers=1) for seed in (0, 1))
    prompts = ["01234=", "44444="] * 4
    for prob, writer in ((1.0, senior), (0.0, junior)):
        schedules = two_styles.schedules_of("word", prob, 0, range(8))
        joint, mask = two_styles.write_jointly(senior, junior, prompts, schedules, seeded(4))
        alone = sample(writer, ALPHABET, prompts, max_tokens=two_styles.MAX_TOKENS, generator=seeded(4))
        assert torch.equal(joint.ids, alone.ids) and torch.allclose(joint.log_probs, alone.log_probs)
        assert torch.equal(mask, alone.mask if prob else torch.zeros_like(mask))


def updated(senior, ids, mask, *, kl=0.0, steps=1, rewards=None):
    """The senior after updates on fixed responses of one group and mini-batch."""
    model = tandem.copy_of(senior)
    prompts = ALPHABET.encode(["01234="] * len(ids))
    responses = tandem.Responses(prompts, ids, ids != 0, torch.zeros(ids.shape), [])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rewards = torch.tensor([1.0, 0.0] * (len(ids) // 2)) if rewards is None else rewards
    for _ in range(steps):
        tandem.update(model, senior, optimizer, responses, mask, rewards, kl=kl)
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_tokens_of_the_junior_are_not_trained():
    senior = make_model(ALPHABET, seed=0, width=16, layers=1)
    first = padded(ALPHABET, ["ab;cd;#0", "Ab;cD;#1"] * 4)
    other = padded(ALPHABET, ["ab;cd;#0", "Ab;cD;#1"] * 4)
    other[:, 4] = ALPHABET.ids["E"]
    mask = torch.zeros(first.shape, dtype=torch.bool)
    mask[:, :3] = True
    assert torch.equal(updated(senior, first, mask), updated(senior, other, mask))
    assert not torch.equal(updated(senior, first, first != 0), updated(senior, other, first != 0))


def test_rewarded_text_becomes_likelier_and_the_penalty_holds_it_back():
    senior = make_model(ALPHABET, seed=0, width=32, layers=1)
    prompts = ["01234="] * (tandem.PROMPTS * tandem.GROUP)
    shares = {}
    for kl in (0.0, 10.0):
        model, generator = tandem.copy_of(senior), seeded(6)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for _ in range(6):
            found = sample(model, ALPHABET, prompts, max_tokens=6, generator=generator)
            rewards = torch.tensor([share_of_a(text) or 0.0 for text in found.texts])
            tandem.update(model, senior, optimizer, found, found.mask, rewards, kl=kl)
        shares[kl] = float(rewards.mean())
    assert shares[0.0] > 0.8 > 0.65 > shares[10.0]


def test_the_bounds_pay_for_one_style_only():
    prompt, a, b, both = "12340=", "cd;da;ab;ab;#0", "CD;DA;AB;AB;#0", "Cd;da;ab;ab;#0"
    paid = {name: [tandem.reward(tandem.ARMS[name], prompt, text) for text in (a, b, both)] for name in tandem.ARMS}
    assert paid["only A pays"] == [1, 0, 0] and paid["only B pays"] == [0, 1, 0] and paid["tandem"] == [1, 1, 1]
    assert tandem.reward(tandem.ARMS["only A pays"], prompt, a[:-1] + "1") == 0


def test_transfer_utility_of_a_junior_that_needs_two_sentences(monkeypatch):
    def scripted(junior, alphabet, prompts, **_):
        texts = ["#0" if prompt.count(";") >= 2 else "#1" for prompt in prompts]
        return tandem.Responses(None, None, None, None, texts)

    monkeypatch.setattr(readability, "sample", scripted)
    utility, alone = readability.transfer(None, [("12340=", "cd;da;ab;ab;#0")], seeded())
    # Cuts at 0, 20, 40, 60 and 80 %: the curve rises from 0 to 1 between 20 and 40 %.
    assert alone == 0
    assert utility == pytest.approx((sum((edge - 20) / 20 for edge in range(22, 41, 2)) + 30) / 50)


def test_an_evaluation_of_one_model_as_both():
    """A partner with the same weights is surprised exactly as much as the writer itself."""
    model = make_model(ALPHABET, seed=0, width=16, layers=1)
    found = readability.evaluate(model, model, 3)
    assert found["excess"] == pytest.approx(0, abs=1e-5)
    assert found["cross_entropy"] == pytest.approx(torch.tensor(float(len(ALPHABET) - 1)).log().item(), abs=0.3)
    assert 0 < found["a"] < 1 and found["unfinished"] > 0


def test_one_short_run_in_every_arm(monkeypatch):
    models = tuple(make_model(ALPHABET, seed=seed, width=16, layers=1) for seed in (0, 1))
    monkeypatch.setattr(tandem, "start_of", lambda seed: models)
    monkeypatch.setattr(tandem, "evaluate", lambda *_: {})
    monkeypatch.setattr(tandem, "PROMPTS", 2)
    shares = {}
    for arm in tandem.ARMS:
        *_, last = tandem.train({"arm": arm, "seed": 1, "rate": 1e-3, "steps": 1})
        shares[arm] = last["trained_share"]
    assert shares["grpo"] == shares["grpo, KL .1"] == shares["only A pays"] == 1
    assert shares["tandem p=.25"] < shares["tandem"] < shares["tandem p=.75"] < 1


def test_the_rate_is_the_best_of_the_development_seed():
    runs = [
        ({"seed": 0, "arm": arm, "rate": rate}, [{"solo": 0.9}, {"solo": solo}])
        for arm in tandem.CHOSEN
        for rate, solo in ((3e-4, 0.5), (1e-3, 0.7), (3e-3, 0.7))
    ]
    runs.append(({"seed": 1, "arm": "grpo", "rate": 3e-4}, [{"solo": 1.0}]))
    assert tandem.chosen_rates(runs) == dict.fromkeys(tandem.ARMS, 1e-3)


@pytest.mark.parametrize(
    ("handoff", "surprise", "verdict"),
    [(0.2, -1.0, "holds:"), (0.2, 1.0, "holds in one"), (-0.2, 1.0, "not confirmed"), (0.0, 0.0, "not confirmed")],
)
def test_the_conclusion_can_come_out_either_way(handoff, surprise, verdict):
    noise = {1: -0.01, 2: 0.0, 3: 0.01}

    def arm(sentence, cross_entropy):
        return {
            "sentence": {seed: 0.5 + sentence + step for seed, step in noise.items()},
            "cross_entropy": {seed: 2 + cross_entropy + step for seed, step in noise.items()},
            "solo": dict.fromkeys(noise, 0.5),
        }

    level = {"sentence": {1: 0.52, 2: 0.49, 3: 0.5}, "cross_entropy": {1: 2.03, 2: 1.98, 3: 2.0}}
    found = tandem.conclusion({"tandem": arm(handoff, surprise), "grpo": arm(0, 0) | level})
    assert verdict in found.replace("claim holds", "holds")


def test_the_page_shows_what_the_logs_say():
    page = tandem.PAGE.read_text(encoding="utf-8")
    shown = re.search(r"<!-- report -->\n(.*?)\n<!-- end of report -->", page, re.DOTALL).group(1)
    assert shown.strip() == tandem.report().strip()
    assert (tandem.RESULTS / "tandem.png").stat().st_size > 0


def test_the_recipe_leads_with_the_conclusion():
    readme = (tandem.PAGE.parents[2] / "recipes" / "tandem" / "README.md").read_text(encoding="utf-8")
    assert tandem.report().splitlines()[-1] in readme
