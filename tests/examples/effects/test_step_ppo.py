"""The combination lock's exact completion rates, the return of rechecks, and the KL penalty."""

import critic_ppo
import pytest
import step_ppo
import torch
from combination_lock import ALPHABET, LIMIT, SLOTS, STEP_TOKENS, SYMBOLS, Habits, Lock, read
from policy import Responses, log_probs_of, make_model, padded

LOCK = Lock(0)
QUESTION = LOCK.question(torch.Generator().manual_seed(0))
PROMPT, TURNS = len(QUESTION.text), len(SLOTS)
RIGHT = "".join(
    f"{slot}{SYMBOLS[symbol]}{digit};"
    for slot, symbol, digit in zip(SLOTS, QUESTION.symbols, QUESTION.digits, strict=True)
)
AGAIN = "=" + RIGHT[-3:]


def random_habits(seed: int = 0) -> Habits:
    generator = torch.Generator().manual_seed(seed)
    turn = torch.rand(len(SYMBOLS), generator=generator, dtype=torch.float64)
    choice = torch.rand(TURNS + 1, 3, generator=generator, dtype=torch.float64)
    choice[:, 1] *= 0.02
    return Habits(turn, choice / choice.sum(-1, keepdim=True))


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
