"""The combination lock, its exact completion rates, PPO's signs, and the page's tables."""

import math
from types import SimpleNamespace

import critic_ppo
import pytest
import step_ppo
import step_ppo_kl
import torch
from combination_lock import ALPHABET, DIGITS, LIMIT, SLOTS, STEP_TOKENS, SYMBOLS, Habits, Lock, habits_of, read
from completion_rates import Labelled, auc, labelled, oracle_values, prm_values, quality, steps_of, train_prm
from policy import Responses, log_probs_of, make_model, padded, sample

LOCK = Lock(0)
QUESTION = LOCK.question(torch.Generator().manual_seed(0))
PROMPT, TURNS = len(QUESTION.text), len(SLOTS)
RIGHT = "".join(
    f"{slot}{SYMBOLS[symbol]}{digit};"
    for slot, symbol, digit in zip(SLOTS, QUESTION.symbols, QUESTION.digits, strict=True)
)
AGAIN = "=" + RIGHT[-3:]


def wrong_at(slot: int) -> str:
    """The open lock's response with one other digit."""
    place = STEP_TOKENS * slot + 2
    return RIGHT[:place] + next(digit for digit in DIGITS if digit != RIGHT[place]) + RIGHT[place + 1 :]


def random_habits(seed: int = 0) -> Habits:
    generator = torch.Generator().manual_seed(seed)
    turn = torch.rand(len(SYMBOLS), generator=generator, dtype=torch.float64)
    choice = torch.rand(TURNS + 1, 3, generator=generator, dtype=torch.float64)
    choice[:, 1] *= 0.02
    return Habits(turn, choice / choice.sum(-1, keepdim=True))


def test_a_response_is_read():
    """Every slot in order opens; a recheck changes nothing; a slot out of order or a rest ends what can be read."""
    whole = read(QUESTION, RIGHT)
    assert whole.right and whole.well_formed and whole.turns == tuple(range(1, TURNS + 1))
    assert len(whole.step_ends) == TURNS and all(RIGHT[end] == ";" for end in whole.step_ends)
    checked = read(QUESTION, RIGHT[:STEP_TOKENS] + "=a0;" + RIGHT[STEP_TOKENS:])
    assert checked.right and checked.turns[:3] == (1, 1, 2) and len(checked.turns) == TURNS + 1
    assert not read(QUESTION, RIGHT[STEP_TOKENS:]).well_formed and not read(QUESTION, "").well_formed
    assert read(QUESTION, RIGHT[:-STEP_TOKENS]).well_formed and not read(QUESTION, RIGHT[:-STEP_TOKENS]).right
    assert not read(QUESTION, RIGHT + "A").right


def test_a_wrong_turn_cannot_be_taken_back():
    wrong = read(QUESTION, wrong_at(4))
    assert wrong.sound == (True,) * 4 + (False,) * (TURNS - 4) and wrong.well_formed and not wrong.right
    other = next(symbol for symbol in SYMBOLS if symbol != RIGHT[1])
    assert not any(read(QUESTION, RIGHT[0] + other + RIGHT[2:]).sound)


def test_demonstrations_are_as_right_as_their_habits():
    """The share of open locks of the writer itself, against the product of its probabilities."""
    generator = torch.Generator().manual_seed(1)
    pairs = [LOCK.demonstration(generator) for _ in range(4000)]
    turns = right = 0
    for prompt, text in pairs:
        for place in range(0, len(text), STEP_TOKENS):
            if text[place] != "=":
                symbol = prompt[2 * SLOTS.index(text[place]) + 1]
                turns += 1
                right += int(text[place + 2]) == LOCK.key[SYMBOLS.index(symbol)]
    expected = (6 * 0.97 + 6 * 0.35) / 12
    assert right / turns == pytest.approx(expected, abs=4 * 0.5 / turns**0.5 + 0.002)
    assert max(len(text) for _, text in pairs) < LIMIT


@pytest.mark.parametrize("done", [0, 7, TURNS])
def test_the_rates_are_those_of_all_continuations(done):
    """Against a recursion over every continuation of at most four rechecks in all."""
    habits = random_habits()
    turn, choice = habits.turn.tolist(), habits.choice.tolist()

    def rate(turns, rechecks):
        end, again, onward = choice[turns]
        found = end * (turns == TURNS)
        if rechecks:
            found += again * rate(turns, rechecks - 1)
        if turns < TURNS:
            found += onward * turn[QUESTION.symbols[turns]] * rate(turns + 1, rechecks)
        return found

    assert habits.values(QUESTION)[done].item() == pytest.approx(rate(done, 4), rel=1e-3)
    wrong = habits.step_values(QUESTION, read(QUESTION, wrong_at(8)))
    assert wrong[:8] == habits.values(QUESTION)[1:9].tolist() and wrong[8:] == [0.0, 0.0]


class Scripted:
    """A policy of known habits, called as a model is."""

    def __init__(self, habits: Habits):
        self.habits = habits

    def __call__(self, ids, past_key_values=None, use_cache=False):
        known = ids if past_key_values is None else torch.cat([past_key_values, ids], dim=1)
        logits = torch.full((*known.shape, len(ALPHABET)), -30.0)
        for row, text in enumerate(
            ["".join(ALPHABET.characters[max(i, 2) - 2] for i in row) for row in known.tolist()]
        ):
            for place in range(max(PROMPT - 1, 0 if past_key_values is None else known.shape[1] - 1), len(text)):
                for token, chance in self.law(text[:PROMPT], text[PROMPT : place + 1]).items():
                    logits[row, place, token] = math.log(chance)
        return SimpleNamespace(logits=logits[:, -ids.shape[1] :], past_key_values=known)

    def law(self, prompt: str, text: str) -> dict[int, float]:
        """Probability of the next token, by id."""
        marks = text[::STEP_TOKENS]
        done = min(TURNS, sum(mark != "=" for mark in marks))
        match len(text) % STEP_TOKENS:
            case 0:
                onward = ALPHABET.ids[SLOTS[done]] if done < TURNS else ALPHABET.ids["|"]
                chances = self.habits.choice[done].clamp_min(1e-12).tolist()
                return dict(zip((1, ALPHABET.ids["="], onward), chances, strict=True))
            case 1:
                return {ALPHABET.ids[prompt[2 * max(0, done - 1) + 1]]: 1.0}
            case 2:
                symbol = SYMBOLS.index(text[-1])
                right = self.habits.turn[symbol].item()
                wrong = (1 - right) / (len(DIGITS) - 1)
                return {ALPHABET.ids[d]: right if int(d) == LOCK.key[symbol] else wrong for d in DIGITS}
        return {ALPHABET.ids[";"]: 1.0}


def scripted() -> Scripted:
    """Half of the symbols are right in 95 of 100 turns, the others in 80; few steps are rechecks."""
    turn = torch.tensor([0.95, 0.8] * (len(SYMBOLS) // 2), dtype=torch.float64)
    choice = torch.tensor([[0.02, 0.08, 0.9]] * TURNS + [[0.9, 0.05, 0.05]], dtype=torch.float64)
    choice[0] = torch.tensor([0.0, 0.0, 1.0])
    return Scripted(Habits(turn, choice))


def test_habits_are_found_again():
    """The averages over a known policy's responses are its probabilities."""
    policy = scripted()
    found = habits_of(policy, LOCK, torch.Generator().manual_seed(0), responses=24)
    assert torch.allclose(found.turn, policy.habits.turn, atol=1e-4)
    assert torch.allclose(found.choice[:TURNS], policy.habits.choice[:TURNS], atol=1e-4)
    assert torch.allclose(found.choice[TURNS, :2], policy.habits.choice[TURNS, :2], atol=1e-4)


def test_completions_come_out_as_enumerated():
    """Written completions of a known policy agree with its enumerated rates, and so do drawn ones.

    Not fully, since the last state of each trajectory carries its outcome.
    """
    policy, generator = scripted(), torch.Generator().manual_seed(0)
    written = labelled(policy, LOCK, generator, trajectories=6, completions=8)
    found = quality(oracle_values(policy.habits, written.questions, written.written), written, policy.habits)
    assert found["correlation"] > 0.7 and abs(found["mean_value"] - found["mean_observed"]) < 0.1
    drawn = labelled(policy, LOCK, generator, trajectories=8, completions=400, habits=policy.habits)
    found = quality(oracle_values(policy.habits, drawn.questions, drawn.written), drawn, policy.habits)
    assert found["correlation"] > 0.9


def made_up(count: int, completions: int, generator: torch.Generator) -> Labelled:
    """Responses of the scripted habits without a model, with labels drawn from their rates."""
    habits, questions, texts, hits = scripted().habits, [], [], []
    for _ in range(count):
        question, text = LOCK.question(generator), ""
        for slot, symbol, digit in zip(SLOTS, question.symbols, question.digits, strict=True):
            right = torch.rand((), generator=generator) < habits.turn[symbol]
            text += f"{slot}{SYMBOLS[symbol]}{digit if right else (digit + 1) % len(DIGITS)};"
        questions.append(question)
        texts.append(text)
    written = [read(question, text) for question, text in zip(questions, texts, strict=True)]
    for question, response in zip(questions, written, strict=True):
        rates = torch.tensor(habits.step_values(question, response))
        hits.append(torch.binomial(torch.full_like(rates, completions), rates, generator=generator).int().tolist())
    return Labelled(questions, texts, written, hits, completions)


def test_a_prm_learns_more_from_more_completions():
    """On unseen states: 16 completions of 400 trajectories against 2 of 40."""
    generator, habits = torch.Generator().manual_seed(0), scripted().habits
    held_out = made_up(100, 16, generator)
    found = []
    for count, completions in ((400, 16), (40, 2)):
        prm = train_prm(made_up(count, completions, generator), epochs=20, seed=0)
        found.append(quality(prm_values(prm, held_out.questions, held_out.written), held_out, habits))
    assert found[0]["correlation_with_oracle"] > found[1]["correlation_with_oracle"] + 0.1
    assert found[0]["auc"] > 0.8 and found[0]["calibration_error"] < 0.1


@pytest.mark.parametrize("name", [name for name, arm in step_ppo.ARMS.items() if arm.values])
def test_a_better_step_earns_more(name):
    """In every arm with step values the open lock earns more than one lost at its fifth turn."""
    arm, good, bad = step_ppo.ARMS[name], read(QUESTION, RIGHT), read(QUESTION, wrong_at(4))
    good_rewards = step_ppo.rewards_of(arm, good, len(RIGHT) + 1, [0.1 * (n + 1) for n in range(TURNS)])
    bad_rewards = step_ppo.rewards_of(arm, bad, len(RIGHT) + 1, [0.1, 0.2, 0.3, 0.4] + [0.0] * (TURNS - 4))
    assert sum(good_rewards) > sum(bad_rewards)
    cut = step_ppo.rewards_of(arm, read(QUESTION, RIGHT + "=" * (LIMIT - len(RIGHT))), LIMIT, [0.5] * TURNS)
    assert sum(cut) == (-1 if arm.reward.mode == "softmin" else 0)


def test_rechecks_pay_in_the_sum_but_not_in_the_difference():
    """Five rechecks of an open lock: the sum grows, the difference keeps its return."""
    text, values = RIGHT + AGAIN * 5, [0.5] * (TURNS - 1) + [1.0] * 6
    assert len(text) < LIMIT
    returns = {
        name: sum(step_ppo.rewards_of(step_ppo.ARMS[name], read(QUESTION, text), len(text) + 1, values))
        - sum(step_ppo.rewards_of(step_ppo.ARMS[name], read(QUESTION, RIGHT), len(RIGHT) + 1, values[:TURNS]))
        for name in ("sum", "difference", "outcome")
    }
    assert returns == pytest.approx({"sum": 5.0, "difference": 0.0, "outcome": 0.0})


def test_pure_token_pays_for_length_where_values_are_low():
    """Values near 0 are rewards near -1, so the baseline per token is negative: a long malformed response gains."""
    arm, written = step_ppo.ARMS["pure_token"], [read(QUESTION, wrong_at(9))] * 3
    written.append(read(QUESTION, RIGHT + "=" * (LIMIT - len(RIGHT))))
    rewards, mask = torch.zeros(4, LIMIT), torch.zeros(4, LIMIT, dtype=torch.bool)
    for row, (response, length) in enumerate(zip(written, [len(RIGHT) + 1] * 3 + [LIMIT], strict=True)):
        rewards[row, :length] = torch.tensor(step_ppo.rewards_of(arm, response, length, [0.05] * TURNS))
        mask[row, :length] = True
    advantages = critic_ppo.pure_advantages(rewards, mask, written)
    assert not written[-1].well_formed and advantages[-1, :20].min() > 0 > advantages[:3].sum()


@pytest.mark.parametrize("name", ["outcome", "difference", "sum", "pure_token"])
def test_updates_favour_the_right_response(name):
    """From a random policy, a few updates on a fixed batch raise the right response above a wrong one."""
    arm, texts = step_ppo.ARMS[name], [RIGHT, wrong_at(4)] * 4
    start = make_model(ALPHABET, seed=0, width=16)
    prompts, ids = ALPHABET.encode([QUESTION.text] * 8), padded(ALPHABET, texts)
    with torch.no_grad():
        old = log_probs_of(start, prompts, ids)
    responses = Responses(prompts, ids, ids != 0, old, texts)
    written = [read(QUESTION, text) for text in texts]
    values = {True: [0.1 * n + 0.1 for n in range(TURNS)], False: [0.1, 0.2, 0.3, 0.4, *[0.0] * (TURNS - 4)]}
    rewards = torch.tensor([step_ppo.rewards_of(arm, w, ids.shape[1], values[w.right]) for w in written])
    learner = critic_ppo.Learner.of(start, 1e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(4):
        learner.update(responses, written, rewards, generator, pure=arm.pure)
    with torch.no_grad():
        changed = (log_probs_of(learner.policy, prompts, ids) - old).sum(1)
    assert changed[0] > changed[1]


def test_without_an_open_lock_outcome_only_does_not_move():
    """Rewards of 0 and a critic that begins at 0: no gradient at all, while the oracle's values already give one."""
    start, texts = make_model(ALPHABET, seed=0, width=16), [wrong_at(4), wrong_at(7)]
    prompts, ids = ALPHABET.encode([QUESTION.text] * 2), padded(ALPHABET, texts)
    responses = Responses(prompts, ids, ids != 0, log_probs_of(start, prompts, ids).detach(), texts)
    written = [read(QUESTION, text) for text in texts]
    moved = {}
    for name in ("outcome", "difference"):
        values = [random_habits().step_values(QUESTION, w) for w in written]
        rewards = torch.tensor(
            [step_ppo.rewards_of(step_ppo.ARMS[name], w, ids.shape[1], v) for w, v in zip(written, values, strict=True)]
        )
        learner = critic_ppo.Learner.of(start, 1e-3)
        learner.update(responses, written, rewards, torch.Generator().manual_seed(0), pure=False)
        pairs = zip(learner.policy.parameters(), start.parameters(), strict=True)
        moved[name] = any(not torch.equal(a, b) for a, b in pairs)
    assert moved == {"outcome": False, "difference": True}


def test_steps_are_told_apart():
    """A recheck is a fact of its own, and what stands behind the last step is masked."""
    checked = read(QUESTION, RIGHT[:STEP_TOKENS] + "=a0;" + RIGHT[STEP_TOKENS:])
    symbols, facts, turns, mask = steps_of([QUESTION, QUESTION], [checked, read(QUESTION, RIGHT)])
    assert symbols.tolist() == [list(QUESTION.symbols)] * 2
    assert facts[0, 0] == QUESTION.symbols[0] * len(DIGITS) + QUESTION.digits[0]
    assert facts[0, 1] == len(SYMBOLS) * len(DIGITS) and turns[0, :3].tolist() == [1, 1, 2]
    assert mask.sum(1).tolist() == [TURNS + 1, TURNS] and facts[0, 2:].tolist() == facts[1, 1:TURNS].tolist()


def test_area_under_the_curve():
    assert auc(torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([False, False, True, True])) == 0.75
    with pytest.raises(ValueError, match="both labels"):
        auc(torch.tensor([0.1]), torch.tensor([True]))


def test_the_rate_is_the_best_of_the_development_seed():
    runs = [
        ({"seed": 0, "arm": arm, "rate": rate}, [{"accuracy": 0.9}, {"accuracy": accuracy}])
        for arm in step_ppo.ARMS
        for rate, accuracy in zip(step_ppo.RATES, (0.5, 0.7, 0.7), strict=True)
    ]
    runs.append(({"seed": 1, "arm": "outcome", "rate": 1e-4}, [{"accuracy": 0.0}, {"accuracy": 1.0}]))
    assert step_ppo.chosen_rates(runs) == dict.fromkeys(step_ppo.ARMS, 3e-4)


@pytest.mark.parametrize(("gain", "verdict"), [(0.2, "holds"), (-0.2, "is falsified"), (0.0, "is falsified")])
def test_the_conclusion_can_come_out_either_way(gain, verdict):
    def arm(level):
        return {seed: [{"accuracy": 0.0}, {"accuracy": level + noise}] for seed, noise in enumerate((0, 0.01, -0.01))}

    runs = dict.fromkeys(step_ppo.ARMS, arm(0.4)) | {step_ppo.PRIMARY: arm(0.4 + gain)}
    runs["outcome"] = {seed: [{"accuracy": 0.0}, {"accuracy": 0.4}] for seed in range(3)}
    assert f"the claim {verdict}:" in step_ppo.conclusion(runs, runs)


def test_the_penalty_is_the_log_ratio_of_written_tokens():
    """Against the policy itself it is 0; against another the difference of log-probs, and 0 behind the end."""
    policy, other = (make_model(ALPHABET, seed=seed, width=16) for seed in (0, 1))
    texts = [RIGHT, RIGHT[:STEP_TOKENS]]
    prompts, ids = ALPHABET.encode([QUESTION.text] * 2), padded(ALPHABET, texts)
    with torch.no_grad():
        own, reference = log_probs_of(policy, prompts, ids), log_probs_of(other, prompts, ids)
    responses = Responses(prompts, ids, ids != 0, torch.where(ids != 0, own, 0.0), texts)
    assert critic_ppo.log_ratios(policy, responses).abs().max() < 1e-6
    ratios = critic_ppo.log_ratios(other, responses)
    assert torch.allclose(ratios[0], own[0] - reference[0]) and ratios[0].abs().max() > 0.01
    assert not ratios[1, STEP_TOKENS + 1 :].any() and ratios[1, : STEP_TOKENS + 1].any()


def test_the_penalty_pulls_towards_the_reference():
    """Updates with nothing but the penalty as reward make what the reference finds unlikely unlikelier."""
    policy, other = (make_model(ALPHABET, seed=seed, width=16) for seed in (0, 1))
    learner, generator = critic_ppo.Learner.of(policy, 1e-3), torch.Generator().manual_seed(0)
    responses = sample(policy, ALPHABET, [QUESTION.text] * 64, max_tokens=8, generator=generator)
    written = [read(QUESTION, text) for text in responses.texts]
    ratios = critic_ppo.log_ratios(other, responses)
    for _ in range(4):
        learner.update(responses, written, -ratios, generator, pure=False)
    with torch.no_grad():
        changed = log_probs_of(learner.policy, responses.prompts, responses.ids) - responses.log_probs
    moved, known = changed[responses.mask], ratios[responses.mask]
    assert torch.corrcoef(torch.stack([moved, known]))[0, 1] < -0.1


@pytest.mark.parametrize("setting", [{"kl": 0.5}, {}])
def test_the_penalty_is_taken_off_the_rewards(monkeypatch, setting):
    """Where no lock opens, outcome only learns from minus the coefficient times the log-ratios; without one, from 0."""
    monkeypatch.setattr(step_ppo, "EVALUATED", 4)
    monkeypatch.setattr(step_ppo, "EVALUATE_EVERY", 1)
    monkeypatch.setattr(step_ppo, "log_ratios", lambda reference, responses: torch.ones(responses.ids.shape))
    begun = step_ppo.Start(LOCK, make_model(ALPHABET, seed=0, width=16), random_habits())
    monkeypatch.setattr(step_ppo, "start", lambda seed: begun)
    given = []
    monkeypatch.setattr(
        critic_ppo.Learner, "update", lambda self, responses, written, rewards, *_, **__: given.append(rewards)
    )
    records = list(step_ppo.train({"arm": "outcome", "seed": 0, "rate": 1e-3, "steps": 1} | setting))
    assert torch.equal(given[0], torch.full_like(given[0], -setting.get("kl", 0.0)))
    assert records[-1]["return"] == 0 and ("kl" in records[-1]) == bool(setting)


def kl_runs(accuracies: dict, *, default=(0.1, 0.1)) -> list:
    """Logs of the second test's development seeds: two equal evaluations, or a rise and a fall for a negative one."""
    runs = []
    for arm in step_ppo_kl.ARMS:
        for choice in step_ppo_kl.CHOICES:
            levels = accuracies.get(choice, default)
            for seed, level in zip(step_ppo_kl.DEVELOPMENT_SEEDS, levels, strict=True):
                setting = step_ppo_kl.settings_of(arm, seed, *choice, 2)
                curve = (0.01, abs(level), max(level, 0.0))
                runs.append((setting, [{"accuracy": accuracy, "well_formed": 0.9} for accuracy in curve]))
    return runs


def test_the_second_choice_passes_over_collapses():
    """The best mean of the seeds, without those that collapse unless all do; the reported seeds do not count."""
    best, fallen = (0.003, 3e-4), (0.01, 1e-3)
    runs = kl_runs({best: (0.0, 0.3), fallen: (0.9, -0.9)})
    other = step_ppo_kl.settings_of("outcome", step_ppo_kl.SEEDS[0], 0.001, 1e-3, 2)
    runs.append((other, [{"accuracy": 0.0}, {"accuracy": 1.0}]))
    assert step_ppo_kl.chosen(runs) == dict.fromkeys(step_ppo_kl.ARMS, best)
    assert step_ppo_kl.chosen(kl_runs({fallen: (0.9, -0.9)}, default=(0.1, -0.2)))["outcome"] == fallen
    with pytest.raises(ValueError, match="development seeds"):
        step_ppo_kl.chosen(runs[1:])


def test_what_a_collapse_is():
    def ends(best, last, formed=0.9):
        return step_ppo_kl.collapsed([{"accuracy": a, "well_formed": f} for a, f in ((best, 0.9), (last, formed))])

    assert ends(0.5, 0.2) and ends(0.01, 0.01, formed=0.1)
    assert not ends(0.5, 0.3) and not ends(0.012, 0.004)


@pytest.mark.parametrize(("gain", "verdict"), [(0.2, "holds"), (-0.2, "is falsified"), (0.0, "is falsified")])
def test_the_second_conclusion_can_come_out_either_way(gain, verdict):
    outcome = {seed: [{"accuracy": 0.0}, {"accuracy": 0.4}] for seed in range(3)}
    oracle = {
        seed: [{"accuracy": 0.0}, {"accuracy": 0.4 + gain + noise}] for seed, noise in enumerate((0, 0.01, -0.01))
    }
    assert f"the claim {verdict}:" in step_ppo_kl.conclusion({"outcome": outcome, "difference": oracle})


def test_the_tests_share_no_log_and_no_reported_seed():
    assert not {s["seed"] for s, _ in step_ppo.record.read_all(step_ppo.FOLDER)} & set(step_ppo_kl.SEEDS)
    assert not set(step_ppo_kl.DEVELOPMENT_SEEDS) & set(step_ppo_kl.SEEDS)
    assert all("kl" not in setting for setting, _ in step_ppo.record.read_all(step_ppo.FOLDER))
    found = {(s["arm"], s["seed"]) for s, _ in step_ppo.record.read_all(step_ppo_kl.FOLDER)}
    assert found == {
        (arm, seed) for arm in step_ppo_kl.ARMS for seed in (*step_ppo_kl.DEVELOPMENT_SEEDS, *step_ppo_kl.SEEDS)
    }


def test_the_page_shows_what_the_logs_give():
    page = step_ppo.PAGE.read_text(encoding="utf-8")
    assert page.split("<!-- report -->\n")[1].split("\n<!-- end of report -->")[0] == step_ppo.report()
    second = page.split("<!-- report of the second test -->\n")[1].split("\n<!-- end of report of the second test -->")[
        0
    ]
    assert second == step_ppo_kl.report()
    assert all((step_ppo.record.RESULTS / name).stat().st_size > 0 for name in ("step_ppo.png", "step_ppo_kl.png"))


def test_the_recipe_leads_with_the_conclusions():
    readme = (step_ppo.PAGE.parents[2] / "recipes" / "step_ppo" / "README.md").read_text(encoding="utf-8")
    assert all(test.report().splitlines()[-1] in readme for test in (step_ppo, step_ppo_kl))
