"""Step-PPO's second test: the same world with a KL penalty, to tell instability from a lack of information.

Settings, the rule that chooses among them, and the tables; step_ppo.py trains them and prints these.
"""

from collections.abc import Iterable, Sequence
from itertools import product

import record
from step_ppo_tables import Arms, arms_table, mean, mean_accuracy, of_seeds

Run = tuple[dict, list[dict]]

LOG = record.RESULTS / "step_ppo_kl.jsonl"
ARMS = {"outcome": "outcome only", "difference": "oracle, `difference`, outcome last"}
DEVELOPMENT_SEEDS, SEEDS = (0, 6), tuple(range(11, 21))
COEFFICIENTS, RATES = (0.001, 0.003, 0.01), (3e-4, 1e-3)
CHOICES = tuple(product(COEFFICIENTS, RATES))
# A run that never rose cannot fall: below this accuracy a halving is the noise of a few open locks.
RISEN = 0.05


def settings_of(arm: str, seed: int, kl: float, rate: float, steps: int) -> dict:
    """One run; its name says what it is."""
    name = f"kl-{arm}-{seed}-kl{kl:g}-rate{rate:g}"
    return {"name": name, "arm": arm, "seed": seed, "kl": kl, "rate": rate, "steps": steps}


def development_settings(steps: int) -> list[dict]:
    """Every arm and choice on the development seeds."""
    seeds = product(ARMS, DEVELOPMENT_SEEDS, CHOICES)
    return [settings_of(arm, seed, *choice, steps) for arm, seed, choice in seeds]


def reported_settings(choices: dict[str, tuple[float, float]], steps: int) -> list[dict]:
    """Every arm at its choice on the reported seeds."""
    return [settings_of(arm, seed, *choices[arm], steps) for seed in SEEDS for arm in ARMS]


def collapsed(records: Sequence[dict]) -> bool:
    """Whether a run ends below half of its best accuracy, if that was RISEN at least, or mostly malformed."""
    best = max(r["accuracy"] for r in records)
    return records[-1]["well_formed"] < 0.5 or (best >= RISEN and records[-1]["accuracy"] < best / 2)


def chosen(logs: Sequence[Run]) -> dict[str, tuple[float, float]]:
    """For each arm its KL coefficient and rate: the best mean accuracy over the development seeds.

    Settings that collapsed on a development seed are passed over unless all did; of two equal ones the first counts.
    """
    found = {}
    for arm in ARMS:
        runs = {choice: _development(logs, arm, choice) for choice in CHOICES}
        steady = [choice for choice in CHOICES if not any(map(collapsed, runs[choice].values()))]
        found[arm] = max(
            steady or CHOICES, key=lambda choice, runs=runs: sum(map(mean_accuracy, runs[choice].values()))
        )
    return found


def _development(logs: Sequence[Run], arm: str, choice: tuple[float, float]) -> dict[int, list[dict]]:
    runs = _runs(logs, arm, choice, DEVELOPMENT_SEEDS)
    if len(runs) != len(DEVELOPMENT_SEEDS):
        raise ValueError(f"{arm} at {choice} needs the development seeds {DEVELOPMENT_SEEDS}, found {sorted(runs)}")
    return runs


def _runs(logs: Sequence[Run], arm: str, choice: tuple[float, float], seeds: Iterable[int]) -> dict[int, list[dict]]:
    return {s["seed"]: r for s, r in logs if s["arm"] == arm and (s["kl"], s["rate"]) == choice and s["seed"] in seeds}


def report() -> str:
    """The second test's tables and its sentence of conclusion, as Markdown."""
    logs = record.read_all(LOG)
    choices = chosen(logs)
    runs = {arm: _runs(logs, arm, choice, SEEDS) for arm, choice in choices.items()}
    cells = {arm: f"{kl:g}, {rate:g}" for arm, (kl, rate) in choices.items()}
    first = next(iter(runs["outcome"].values()))[1]["step"]
    table = arms_table(runs, ARMS, cells, "KL coefficient, rate", collapsed, first)
    return "\n\n".join([table, seeds_table(runs), choices_table(logs), conclusion(runs)])


def seeds_table(runs: Arms) -> str:
    """Mean accuracy over training in %, by reported seed."""
    seeds = sorted(runs["outcome"])
    lines = ["| seed | " + " | ".join(map(str, seeds)) + " |", "|" + "---|" * (len(seeds) + 1)]
    lines += [f"| {ARMS[arm]} | {' | '.join(f'{mean(runs[arm][seed]):.1f}' for seed in seeds)} |" for arm in ARMS]
    return "\n".join(lines)


def choices_table(logs: Sequence[Run]) -> str:
    """Mean accuracy in % over the development seeds, and collapses, by KL coefficient and rate."""
    lines = [
        f"| seeds {', '.join(map(str, DEVELOPMENT_SEEDS))}, not reported above | "
        + " | ".join(f"{kl:g}, {rate:g}" for kl, rate in CHOICES)
        + " |",
        "|" + "---|" * (len(CHOICES) + 1),
    ]
    for arm, label in ARMS.items():
        cells = []
        for choice in CHOICES:
            runs = _development(logs, arm, choice).values()
            fallen = sum(map(collapsed, runs))
            cells.append(f"{sum(map(mean, runs)) / len(runs):.1f}" + (f" ({fallen} collapsed)" if fallen else ""))
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def conclusion(runs: Arms) -> str:
    """One sentence: whether the claim stands in the second test, by the criterion of the first."""
    found = {arm: of_seeds(seeds, mean) for arm, seeds in runs.items()}
    change, half = record.difference(found["difference"], found["outcome"])
    verdict = "holds" if change > half else "is falsified"
    ahead = sum(found["difference"][seed] > found["outcome"][seed] for seed in found["outcome"])
    return (
        f"In a second test, designed after the first failed, with a small KL penalty and fresh seeds, the claim "
        f"{verdict}: the oracle's step rewards change mean accuracy over training by {change:+.1f} ± {half:.1f} points "
        f"and are ahead on {ahead} of {len(found['outcome'])} seeds (paired, 95 % interval)."
    )


def draw() -> None:
    """Accuracy over training with the KL penalty, each seed and the mean."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    logs = record.read_all(LOG)
    figure, panel = pyplot.subplots(figsize=(7, 4))
    for color, (arm, choice) in zip(("tab:blue", "tab:orange"), chosen(logs).items(), strict=True):
        curves = list(_runs(logs, arm, choice, SEEDS).values())
        steps = [r["step"] for r in curves[0]]
        for records in curves:
            panel.plot(steps, [100 * r["accuracy"] for r in records], color=color, lw=0.5, alpha=0.6)
        means = [100 * sum(c[n]["accuracy"] for c in curves) / len(curves) for n in range(len(steps))]
        panel.plot(steps, means, color=color, lw=3, label=ARMS[arm].replace("`", ""))
    panel.set(xlabel="PPO step", ylabel="accuracy of sampled responses, %", title="with a KL penalty")
    panel.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(record.RESULTS / "step_ppo_kl.png", dpi=80)
