"""Do rewards at steps beat a reward at the end? PPO on a lock of ten turns, where outcomes are rare.

`run` trains what is not logged yet, `report` prints the tables of step_ppo.md and draws its picture.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import record
import step_ppo_kl
import torch
from combination_lock import ALPHABET, LIMIT, SLOTS, Habits, Lock, Question, Written, habits_of, read
from completion_rates import StepPRM, labelled, oracle_values, prm_values, quality, train_prm
from critic_ppo import Learner, log_ratios, step_places
from policy import Responses, make_model, sample, warm_up
from step_ppo_tables import Arms, arms_table, halved, mean, mean_accuracy, of_seeds, plain
from torch import Tensor, nn

from recipes.step_ppo.rewards import StepRewardConfig, token_rewards

LOG = record.RESULTS / "step_ppo.jsonl"
SEEDS, DEVELOPMENT_SEED, RATES = (1, 2, 3, 4, 5), 0, (1e-4, 3e-4, 1e-3)
STEPS, EVALUATE_EVERY, RESPONSES = 45, 9, 16
WIDTH, WARM_UP_STEPS, EVALUATED = 48, 250, 256
RATE_WARM_UP = 5
# Completions per state of each PRM: its trajectories and epochs.
PRMS, HELD_OUT = {16: (1024, 40), 2: (512, 20)}, 256
PRIMARY = "difference"
# Of a second table, added when the first was known: the arms with a critic at the rate that outcome only has.
SAME_RATE = 3e-4


@dataclass(frozen=True)
class Arm:
    """One row of the table.

    Attributes:
        values: `oracle` for the completion rate of each state, the PRM's number of completions per state, or None.
        reward: how they become token rewards.
    """

    label: str
    values: str | int | None
    reward: StepRewardConfig


DIFFERENCE = StepRewardConfig("difference", "outcome")
ARMS = {
    "outcome": Arm("outcome only", None, StepRewardConfig("outcome")),
    "difference": Arm("oracle, `difference`, outcome last", "oracle", DIFFERENCE),
    "prm16_difference": Arm("PRM of 16, `difference`, outcome last", 16, DIFFERENCE),
    "prm2_difference": Arm("PRM of 2, `difference`, outcome last", 2, DIFFERENCE),
    "sum": Arm("oracle, `sum`", "oracle", StepRewardConfig("sum")),
}


@dataclass(frozen=True)
class Start:
    """What the arms of a seed share: the lock, the policy after its warm-up, its completion rates."""

    lock: Lock
    policy: nn.Module
    habits: Habits


@lru_cache
def start(seed: int) -> Start:
    """Warm the policy up and enumerate its completion rates."""
    generator = torch.Generator().manual_seed(1000 + seed)
    lock, policy = Lock(seed), make_model(ALPHABET, seed=seed, width=WIDTH)
    warm_up(policy, ALPHABET, lock.demonstration, steps=WARM_UP_STEPS, generator=generator, batch=64, rate=3e-3)
    return Start(lock, policy.eval(), habits_of(policy, lock, generator, responses=1024))


@lru_cache
def prm_of(seed: int, completions: int) -> StepPRM:
    """The PRM of a seed."""
    begun, generator = start(seed), torch.Generator().manual_seed(2000 + seed)
    trajectories, epochs = PRMS[completions]
    data = labelled(
        begun.policy,
        begun.lock,
        generator,
        trajectories=trajectories,
        completions=completions,
        habits=begun.habits,
    )
    return train_prm(data, epochs=epochs, seed=seed)


def measure_values(seed: int) -> Iterator[dict]:
    """One record: the quality of the oracle and of each PRM on held-out states with written completions."""
    begun, generator = start(seed), torch.Generator().manual_seed(3000 + seed)
    held_out = labelled(begun.policy, begun.lock, generator, trajectories=HELD_OUT, completions=16)
    pair = held_out.questions, held_out.written
    found = {"oracle": quality(oracle_values(begun.habits, *pair), held_out, begun.habits)}
    for completions in PRMS:
        values = prm_values(prm_of(seed, completions), *pair)
        found[f"prm{completions}"] = quality(values, held_out, begun.habits)
    yield found


def rewards_of(arm: Arm, written: Written, length: int, values: Sequence[float] | None) -> list[float]:
    """(length,) rewards of one response; `values` are those of the steps that could be read.

    As in the recipe, a response that the limit cut earns what one step of value 0 does. What cannot be read behind the
    last step is a step of value 0, from which no lock is opened.
    """
    outcome = float(written.right)
    if arm.reward.mode == "outcome":
        return token_rewards(None, [], length, arm.reward, eos_index=length - 1, outcome=outcome)
    places = step_places(written, length)
    if length == LIMIT and not written.well_formed:
        return [0.0] * length
    at_tokens = [0.0] * length
    for place, value in zip(places, [*values, 0.0], strict=False):
        at_tokens[place] = value
    return token_rewards(at_tokens, places, length, arm.reward, eos_index=length - 1, outcome=outcome)


def batch_rewards(
    arm: Arm, seed: int, questions: Sequence[Question], responses: Responses, written: Sequence[Written]
) -> Tensor:
    """(B, T) rewards."""
    if isinstance(arm.values, int):
        values = prm_values(prm_of(seed, arm.values), questions, written)
    elif arm.values == "oracle":
        values = oracle_values(start(seed).habits, questions, written)
    else:
        values = [None] * len(written)
    rewards = torch.zeros(responses.ids.shape)
    for row, (w, length) in enumerate(zip(written, responses.mask.sum(1).tolist(), strict=True)):
        rewards[row, :length] = torch.tensor(rewards_of(arm, w, length, values[row]))
    return rewards


def train(setting: dict) -> Iterator[dict]:
    """One run of PPO; a record before the first step and after every EVALUATE_EVERY. Or the measurement of values."""
    if setting["arm"] == "values":
        yield from measure_values(setting["seed"])
        return
    arm, begun, kl = ARMS[setting["arm"]], start(setting["seed"]), setting.get("kl", 0.0)
    learner = Learner.of(begun.policy, setting["rate"])
    schedules = [
        torch.optim.lr_scheduler.LinearLR(optimizer, 1 / RATE_WARM_UP, 1.0, RATE_WARM_UP - 1)
        for optimizer in (learner.policy_optimizer, learner.critic_optimizer)
    ]
    generator = torch.Generator().manual_seed(setting["seed"])
    yield {"step": 0, **evaluate(learner.policy, begun.lock)}
    for step in range(1, setting["steps"] + 1):
        questions = [begun.lock.question(generator) for _ in range(RESPONSES)]
        texts = [question.text for question in questions]
        responses = sample(learner.policy, ALPHABET, texts, max_tokens=LIMIT, generator=generator)
        written = [read(question, text) for question, text in zip(questions, responses.texts, strict=True)]
        rewards = batch_rewards(arm, setting["seed"], questions, responses, written)
        ratios = log_ratios(begun.policy, responses) if kl else torch.zeros_like(rewards)
        learner.update(responses, rewards - kl * ratios, generator)
        for schedule in schedules:
            schedule.step()
        if step % EVALUATE_EVERY == 0:
            found = {"return": rewards.sum(1).mean().item()} | ({"kl": ratios.sum(1).mean().item()} if kl else {})
            yield {"step": step, **evaluate(learner.policy, begun.lock), **found}


def evaluate(policy, lock: Lock) -> dict[str, float]:
    """Shares and means over EVALUATED sampled responses to questions that are the same at every evaluation."""
    generator = torch.Generator().manual_seed(99)
    questions = [lock.question(generator) for _ in range(EVALUATED)]
    responses = sample(policy, ALPHABET, [q.text for q in questions], max_tokens=LIMIT, generator=generator)
    written = [read(question, text) for question, text in zip(questions, responses.texts, strict=True)]
    return {
        "accuracy": sum(w.right for w in written) / EVALUATED,
        "right_turns": sum(max((t for t, s in zip(w.turns, w.sound, strict=True) if s), default=0) for w in written)
        / EVALUATED,
        "well_formed": sum(w.well_formed for w in written) / EVALUATED,
        "steps": sum(len(w.turns) for w in written) / EVALUATED,
    }


def settings_of(arm: str, seed: int, rate: float) -> dict:
    """One run; its name says what it is."""
    return {"name": f"{arm}-{seed}-{rate:g}", "arm": arm, "seed": seed, "rate": rate, "steps": STEPS}


def run(workers: int) -> None:
    """Train every arm at each rate on the development seed, then at its best and the common one on the others.

    Then the second test.
    """
    development = [settings_of(arm, DEVELOPMENT_SEED, rate) for arm in ARMS for rate in RATES]
    record.run_all(train, development, LOG, workers=workers)
    chosen = chosen_rates(record.read_all(LOG))
    rates = {(arm, rate) for found in (chosen, same_rates()) for arm, rate in found.items()}
    seeds = [settings_of(arm, seed, rate) for seed in SEEDS for arm, rate in sorted(rates)]
    seeds += [{"name": f"values-{seed}", "arm": "values", "seed": seed} for seed in SEEDS]
    record.run_all(train, seeds, LOG, workers=workers)
    record.run_all(train, step_ppo_kl.development_settings(STEPS), step_ppo_kl.LOG, workers=workers)
    found = step_ppo_kl.chosen(record.read_all(step_ppo_kl.LOG))
    record.run_all(train, step_ppo_kl.reported_settings(found, STEPS), step_ppo_kl.LOG, workers=workers)


def same_rates() -> dict[str, float]:
    """The arms of the second table."""
    return dict.fromkeys(ARMS, SAME_RATE)


def chosen_rates(logs: Sequence[tuple[dict, list[dict]]]) -> dict[str, float]:
    """For each arm the rate of the largest mean accuracy on the development seed; the smaller of two equal ones."""
    found = {
        (s["arm"], s["rate"]): mean_accuracy(records)
        for s, records in logs
        if s["arm"] in ARMS and s["seed"] == DEVELOPMENT_SEED
    }
    return {arm: max(RATES, key=lambda rate, arm=arm: (found[arm, rate], -rate)) for arm in ARMS}


def reported(logs: Sequence[tuple[dict, list[dict]]], rates: dict[str, float]) -> Arms:
    """Records by arm and reported seed, at the given rate of each arm."""
    kept: Arms = {arm: {} for arm in rates}
    for setting, records in logs:
        arm = setting["arm"]
        if arm in rates and setting["seed"] != DEVELOPMENT_SEED and setting["rate"] == rates[arm]:
            kept[arm][setting["seed"]] = records
    return kept


def report() -> str:
    """The first test's tables and its sentence of conclusion, as Markdown."""
    logs = record.read_all(LOG)
    chosen, same = chosen_rates(logs), same_rates()
    runs, second = reported(logs, chosen), reported(logs, same)
    tables = [
        _table(runs, chosen),
        f"The arms with a critic, all at {SAME_RATE:g}; added when the first table was known:",
        _table(second, same),
        rates_table(logs),
        values_table(logs),
        conclusion(runs, second),
    ]
    return "\n\n".join(tables)


def _table(runs: Arms, rates: dict[str, float]) -> str:
    labels = {name: arm.label for name, arm in ARMS.items()}
    return arms_table(runs, labels, {arm: f"{rate:g}" for arm, rate in rates.items()}, "rate", halved, EVALUATE_EVERY)


def rates_table(logs: Sequence[tuple[dict, list[dict]]]) -> str:
    """Mean accuracy in % on the development seed, by learning rate."""
    found = {(s["arm"], s["rate"]): mean(r) for s, r in logs if s["arm"] in ARMS and s["seed"] == DEVELOPMENT_SEED}
    lines = [
        f"| seed {DEVELOPMENT_SEED}, not reported above | " + " | ".join(f"{rate:g}" for rate in RATES) + " |",
        "|" + "---|" * (len(RATES) + 1),
    ]
    lines += [
        f"| {arm.label} | " + " | ".join(f"{found[name, rate]:.1f}" for rate in RATES) + " |"
        for name, arm in ARMS.items()
    ]
    return "\n".join(lines)


def values_table(logs: Sequence[tuple[dict, list[dict]]]) -> str:
    """How good the values are, on held-out states of the policy at its start."""
    columns = {
        "correlation_with_oracle": ("correlation with the oracle", 2),
        "correlation": ("with completions", 2),
        "correlation_sound": ("with completions, right so far", 2),
        "auc": ("AUC, right so far", 2),
        "mean_value_sound": ("mean value, right so far", 3),
        "mean_observed_sound": ("completions that are right there", 3),
        "calibration_error_sound": ("calibration error there", 3),
        "calibration_error": ("calibration error, all states", 3),
    }
    lines = [
        "| values | " + " | ".join(heading for heading, _ in columns.values()) + " |",
        "|" + "---|" * (len(columns) + 1),
    ]
    names = {"oracle": "oracle"}
    names |= {f"prm{k}": f"PRM of {k} completions, {n:,} trajectories" for k, (n, _) in PRMS.items()}
    found = [records[0] for setting, records in logs if setting["arm"] == "values"]
    for name, label in names.items():
        cells = (plain((r[name][key] for r in found), digits) for key, (_, digits) in columns.items())
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def conclusion(runs: Arms, second: Arms) -> str:
    """One sentence: whether the claim, as stated before the runs, stands; and what one rate for both arms gives."""
    (change, half), (same, same_half) = (
        record.difference(of_seeds(found[PRIMARY], mean), of_seeds(found["outcome"], mean)) for found in (runs, second)
    )
    verdict = "holds" if change > half else "is falsified"
    return (
        f"In this world the claim {verdict}: against the outcome alone, the oracle's step rewards change mean accuracy "
        f"over training by {change:+.1f} ± {half:.1f} points at the learning rates chosen on another seed, and by "
        f"{same:+.1f} ± {same_half:.1f} at one rate for both ({len(runs[PRIMARY])} seeds, paired, 95 % intervals)."
    )


def draw() -> None:
    """Accuracy and written steps over training, means over the seeds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    logs = record.read_all(LOG)
    rates = {"rate chosen on seed 0": chosen_rates(logs), f"{SAME_RATE:g} in every arm": same_rates()}
    figure, panels = pyplot.subplots(1, 3, figsize=(15, 4))
    chosen, same = rates
    for panel, (name, key, factor) in zip(
        panels, ((chosen, "accuracy", 100), (same, "accuracy", 100), (same, "steps", 1)), strict=True
    ):
        kept = reported(logs, rates[name])
        for color, (arm, seeds) in zip(pyplot.get_cmap("tab10").colors, kept.items(), strict=False):
            steps = [r["step"] for r in next(iter(seeds.values()))]
            means = [factor * sum(r[n][key] for r in seeds.values()) / len(seeds) for n in range(len(steps))]
            label = ARMS[arm].label.replace("`", "")
            panel.plot(steps, means, color=color, label=label, lw=3 if arm == "outcome" else 1.6)
        what = "accuracy of sampled responses, %" if key == "accuracy" else "written steps per response"
        panel.set(xlabel="PPO step", ylabel=what, title=name)
    panels[2].axhline(len(SLOTS), color="grey", lw=0.8, ls=":")
    panels[0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(record.RESULTS / "step_ppo.png", dpi=80)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("run", "report"))
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.what == "run":
        run(arguments.workers)
    else:
        print(report(), "## A second test, with a KL penalty", step_ppo_kl.report(), sep="\n\n")
        draw()
        step_ppo_kl.draw()
