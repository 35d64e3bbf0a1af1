"""The modules that hold the methods' arithmetic, and the quick tests that guard each."""

from typing import Any, NamedTuple


class Target(NamedTuple):
    """`module` and `tests` are paths from the repository root; `preload` is imported once, before anything is forked;
    `without` is a pytest expression of tests that cost more than they tell."""

    module: str
    tests: tuple[str, ...]
    preload: tuple[str, ...] = ()
    without: str = ""


def _recipe(recipe: str, module: str, *tests: str, **options: Any) -> Target:
    """A module of a recipe; its tests are `test_<module>.py` unless named."""
    names = tests or (f"test_{module}",)
    return Target(f"recipes/{recipe}/{module}.py", tuple(f"tests/recipes/{recipe}/{n}.py" for n in names), **options)


TORCH, NUMPY, ANSWERS = ("torch",), ("numpy",), ("math_verify", "sympy")
_ALL = [
    _recipe("serl", "pseudo_labels"),
    _recipe("serl", "difficulty"),
    _recipe("step_ppo", "step_rewards"),
    _recipe("pasodoble", "diversity"),
    Target("vllm_patches/tandem/plan.py", ("tests/vllm_patches/tandem/test_plan.py",), NUMPY),
    Target("vllm_patches/tandem/schedule.py", ("tests/vllm_patches/tandem/test_schedule.py",), NUMPY),
    _recipe("step_ppo", "pairs"),
    _recipe("tandem", "selection"),
    _recipe("tandem", "authorship", preload=NUMPY),
    _recipe("step_ppo", "states", without="test_ratio_is or test_command"),
    _recipe("step_ppo", "prm_scores"),
    _recipe("pasodoble", "buffer"),
    _recipe("serl", "voting", "test_voting", "test_teacher", preload=ANSWERS),
    _recipe("pasodoble", "voting", preload=ANSWERS),
    _recipe("sppo", "loss", preload=TORCH),
    _recipe("sppo", "advantage", preload=TORCH),
    _recipe("pasodoble", "reward", preload=TORCH),
    _recipe("pasodoble", "reward_kinds", preload=TORCH),
    _recipe("step_ppo", "gae", preload=TORCH),
    # what compares with verl's own code imports all of verl
    _recipe("serl", "estimators", preload=TORCH, without="test_where_verl_differs"),
    _recipe("pasodoble", "rounds", "test_rounds", "test_schedule", "test_reward_kinds", preload=TORCH),
    _recipe("step_ppo", "labels", preload=TORCH),
    _recipe("sppo", "judged_gains", preload=(*TORCH, "openai", "aiohttp")),
    _recipe("serl", "certainty", preload=TORCH),
    _recipe("serl", "teacher", preload=ANSWERS),
    _recipe("serl", "label_history", preload=ANSWERS),
    _recipe("serl", "instructions", without="test_parse_is_linear"),
    _recipe("serl", "similarity", preload=NUMPY),
    Target(
        "vllm_patches/tandem/scheduler.py",
        ("tests/vllm_patches/tandem/test_scheduler.py",),
        ("torch", "vllm.v1.core.sched.scheduler", "vllm.v1.engine", "vllm_patches.tandem.request_rules"),
    ),
    _recipe("step_ppo", "pure", preload=TORCH),
    _recipe("pasodoble", "repetition", preload=NUMPY),
    Target("vllm_patches/tandem/schedule_table.py", ("tests/vllm_patches/tandem/test_schedule.py",), NUMPY),
]
TARGETS = {target.module: target for target in _ALL}
"""By module; the quickest to try come first."""
