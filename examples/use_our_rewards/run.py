"""Score a handful of responses as a verl job would: through verl's own loader if verl is installed, directly if not.

Run from anywhere: `python examples/use_our_rewards/run.py`.
"""

from reward_fns import math as reward_math

ROWS = [
    ("<think>12 / 2 = 6</think> The root is \\boxed{2\\sqrt{3}}.", "\\sqrt{12}"),
    ("So \\boxed{x=41=42}.", "42"),
    ("<think>It is \\boxed{42}.</think> I do not know.", "42"),
    ("\\boxed{5^{5^{5^{5}}}}", "3125"),
    ("\\boxed{42}", None),
]


def load():
    """The function as `reward.custom_reward_function.path=pkg://reward_fns.math` finds it."""
    try:
        from verl.utils.import_utils import load_extern_object
    except ImportError:
        return reward_math.compute_score
    return load_extern_object("pkg://reward_fns.math", "compute_score")


def main():
    compute_score = load()
    for response, gold in ROWS:
        fields = compute_score("math", response, gold, None, time_limit=2.0)
        shown = fields["reason"] or "right"
        print(f"{fields['status']:5} {fields['score']:.1f} {shown:16} gold {gold!s:12} response {response[:50]!r}")


if __name__ == "__main__":
    main()
