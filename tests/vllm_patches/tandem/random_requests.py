"""Random requests, faulty and good: what a careless or hostile client could send."""

import json
import random

from vllm_patches.tandem.config import REQUEST_KEYS
from vllm_patches.tandem.schedule import STRATEGIES

ODD = [
    None, True, False, -1, 0, 1, 3, 0.5, 1.5, -0.0, float("nan"), float("inf"), 10**21, -(10**21), 2**31, 2**63,
    2**64 - 1, 2**64, 5e-324, "", "word", "wörter", "before", "0.5", [], [1], {}, {"a": 1}, "\ud800", b"x",
]  # fmt: skip
GOOD = {
    "selection_strategy": lambda dice: dice.choice(sorted(STRATEGIES)),
    "prob_senior": lambda dice: dice.choice([0, 1, 0.0, 1.0, 0.25, 0.5, dice.random(), 5e-324, 1 - 2**-53]),
    "max_gap_tokens": lambda dice: dice.choice([1, 2, 7, 32, 2**31 - 1]),
    "chunk_size": lambda dice: dice.choice([1, 2, 7, 32, 2**31 - 1]),
    "word_align": lambda dice: dice.choice(["after", "after", "before"]),
    "seed": lambda dice: dice.choice([0, -1, 17, 2**64 - 1, -(2**63), dice.getrandbits(40)]),
    "request": lambda dice: dice.choice([0, -1, 17, 2**64 - 1, -(2**63), dice.getrandbits(63)]),
    "resume_len": lambda dice: dice.choice([0, 0, 1, 2, 5, 40]),
}
assert set(GOOD) == set(REQUEST_KEYS)


def random_settings(dice: random.Random):
    """A value for ``extra_args["tandem"]``: in half of the cases nothing but good values by themselves."""
    settings = {key: GOOD[key](dice) for key in dice.sample(sorted(GOOD), dice.randrange(0, 5))}
    kind = dice.random()
    if kind < 0.3:
        settings[dice.choice(sorted(GOOD))] = dice.choice(ODD)
    elif kind < 0.35:
        settings[dice.choice(["p", "prob_primary", "", "seed ", "junior_model"])] = dice.choice(ODD)
    elif kind < 0.4:
        return dice.choice([*ODD, "{", '{"request":', "[" * 100_000, '{"seed": ' + "9" * 5_000 + "}", "NaN"])
    if dice.random() < 0.3:
        try:
            return json.dumps(settings)
        except TypeError:
            return settings
    return settings
