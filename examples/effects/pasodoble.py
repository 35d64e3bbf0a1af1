"""Does a trained Proposer make better training problems? PasoDoble against a frozen Proposer (`effects/pasodoble.md`).

`python examples/effects/pasodoble.py run` trains what has no log yet, `report` prints the tables and draws the picture.
"""

import statistics
from collections.abc import Iterable, Sequence

from notes import ANSWERABLE, accuracy_by_kind
from record import RESULTS, Runs, by_seed, command_line, difference, mean_and_interval, read_all, run_all, shown
from self_play import ARMS, TRAINED, WORLDS, Game, counts_of

LOG = RESULTS / "pasodoble.jsonl"
UNANSWERABLE = list(WORLDS.values())
RATES = (1e-4, 3e-4, 1e-3)
DEVELOPMENT_SEED, SEEDS = 0, (1, 2, 3, 4, 5)
# of the Solver
STEPS, EVALUATE = 32, 4
# the recipe's bands of pass rates, and those that the Solver learns from
BANDS = {
    "0": "0",
    "to_0.2": "to .2",
    "to_0.4": "to .4",
    "to_0.6": "to .6",
    "to_0.8": "to .8",
    "below_1": "< 1",
    "1": "1",
}
LEARNABLE = ["to_0.4", "to_0.6", "to_0.8", "below_1"]


def train(setting: dict) -> Iterable[dict]:
    """One run: a record at the start and every `EVALUATE` steps, with what was proposed since the last one."""
    game = Game(setting)
    for step in range(setting["steps"] + 1):
        if step % EVALUATE == 0:
            kinds = accuracy_by_kind(game.solver, generator=game.generator)
            yield {"step": step, "greedy": statistics.fmean(kinds.values()), "kinds": kinds, **counts_of(game.seen)}
            game.seen.clear()
        if step < setting["steps"]:
            game.step()


def setting_of(world: str, arm: str, seed: int, rate: float, proposer_rate: float) -> dict:
    """What a run is run with; the name tells the learning rates on the development seed alone."""
    setting = {"world": world, "arm": arm, "seed": seed, "rate": rate, "proposer_rate": proposer_rate, "steps": STEPS}
    tried = [f"{rate:g}", f"{proposer_rate:g}"] if seed == DEVELOPMENT_SEED else []
    return {"name": "-".join([world.split()[0], arm, str(seed), *tried])} | setting


CELLS = [(world, arm) for world in WORLDS for arm in ARMS]


def end_gain(records: Sequence[dict], kinds: Sequence[str] = ANSWERABLE) -> float:
    """Held-out greedy accuracy at the end less that at the start, in points."""
    return 100 * statistics.fmean(records[-1]["kinds"][kind] - records[0]["kinds"][kind] for kind in kinds)


def gain(records: Sequence[dict], kinds: Sequence[str] = ANSWERABLE) -> float:
    """The same for the mean over the evaluations after the start: how fast and how far."""
    return statistics.fmean(end_gain([records[0], record], kinds) for record in records[1:])


def development_gains() -> dict[tuple, float]:
    """World, arm, the Solver's and the Proposer's rate -> gain on the development seed."""
    return {
        tuple(setting[key] for key in ("world", "arm", "rate", "proposer_rate")): gain(records)
        for setting, records in read_all(LOG, "development")
    }


def chosen_rates() -> dict[tuple[str, str], tuple[float, float]]:
    """The learning rates of each world and arm with the largest gain on the development seed."""
    found: dict[tuple[str, str], dict[tuple[float, float], float]] = {}
    for (world, arm, *rates), gained in development_gains().items():
        found.setdefault((world, arm), {})[tuple(rates)] = gained
    return {cell: max(sorted(gains), key=gains.__getitem__) for cell, gains in found.items()}


def run(workers: int) -> None:
    """Train every run that has no log, world by world, with the seed that chooses the rates first."""
    for world in WORLDS:
        first = [
            setting_of(world, arm, DEVELOPMENT_SEED, rate, 0.0) for arm in ARMS if arm not in TRAINED for rate in RATES
        ]
        run_all(train, first, LOG, "development", workers=workers)
        solvers = chosen_rates()[world, "frozen"][0]
        then = [setting_of(world, arm, DEVELOPMENT_SEED, solvers, rate) for arm in TRAINED for rate in RATES]
        run_all(train, then, LOG, "development", workers=workers)
        rates = chosen_rates()
        # runs from one start stand together: it is warmed up once
        reported = [setting_of(world, arm, seed, *rates[world, arm]) for seed in SEEDS for arm in ARMS]
        run_all(train, reported, LOG, workers=workers)


def total(records: Sequence[dict], count: str, keys: Sequence[str] | None = None) -> float:
    """How many questions a count of `counts_of` holds in these records, of all keys or of some."""
    return sum(number for record in records for key, number in record[count].items() if keys is None or key in keys)


def share(records: Sequence[dict], count: str, keys: Sequence[str]) -> float:
    """Share of the keys in a count, in %."""
    return 100 * total(records, count, keys) / max(1, total(records, count))


def gains_table(runs: Runs) -> str:
    """What each arm gains, in all and by kind, and what its Solver was trained on."""
    rates = chosen_rates()
    lines = [
        "| unanswerable | Proposer | rates | gain | at the end | "
        + " | ".join(f"gain, {kind}" for kind in ANSWERABLE)
        + " | asked | pass, % | trained | of the trained unanswerable, % | of the unanswerable pass, % |",
        "|---" * (10 + len(ANSWERABLE)) + "|",
    ]
    for world, arm in CELLS:
        own = [records for setting, records in runs if (setting["world"], setting["arm"]) == (world, arm)]
        gained, ended = (mean_and_interval([value(records) for records in own]) for value in (gain, end_gain))
        by_kind = [statistics.fmean(gain(records, [kind]) for records in own) for kind in ANSWERABLE]
        asked, passed = (
            [statistics.fmean(total(records, count, keys) for records in own) for keys in (None, UNANSWERABLE)]
            for count in ("proposed", "passed")
        )
        given = ", ".join(f"{rate:g}" for rate in rates[world, arm] if rate)
        lines.append(
            f"| {world} | {arm} | {given} | **{shown(gained)}** | {shown(ended)} | "
            + " | ".join(f"{mean:+.1f}" for mean in by_kind)
            + f" | {asked[0]:.0f} | {100 * passed[0] / asked[0]:.0f} | "
            + f"{statistics.fmean(total(records, 'trained') for records in own):.0f} | "
            + f"{statistics.fmean(share(records, 'trained', UNANSWERABLE) for records in own):.1f} | "
            + (f"{100 * passed[1] / asked[1]:.0f} |" if asked[1] else "|")
        )
    return "\n".join(lines)


def less(runs: Runs, world: str, first: str, second: str) -> tuple[float, float]:
    """Difference of two arms' gains in a world, paired by seed."""
    return difference(*(by_seed(runs, gain, world=world, arm=arm) for arm in (first, second)))


def differences_table(runs: Runs) -> str:
    """Every Proposer less the frozen one and less the oracle."""
    lines = ["| gain of | less frozen, " + " | less frozen, ".join(WORLDS) + " | less oracle, "]
    lines[0] += " | less oracle, ".join(WORLDS) + " |"
    lines.append("|---" * (1 + 2 * len(WORLDS)) + "|")
    for arm in (*TRAINED, "oracle"):
        cells = [
            "" if arm == other else shown(less(runs, world, arm, other))
            for other in ("frozen", "oracle")
            for world in WORLDS
        ]
        lines.append(f"| {arm} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def proposals_table(runs: Runs) -> str:
    """Pass rates and kinds of what was proposed at the start, in the middle and at the end of training."""
    lines = [
        f"| unanswerable | Proposer | steps | p = {' | '.join(BANDS.values())} | "
        f"{' | '.join(ANSWERABLE)} | unanswerable | unparsed |",
        "|---" * (5 + len(BANDS) + len(ANSWERABLE)) + "|",
    ]
    for world, arm in CELLS:
        for name, place in ((f"{(place - 1) * EVALUATE + 1} to {place * EVALUATE}", place) for place in (1, 4, 8)):
            records = [
                records[place] for setting, records in runs if (setting["world"], setting["arm"]) == (world, arm)
            ]
            cells = [share(records, "band", [band]) for band in BANDS]
            cells += [
                share(records, "proposed", kinds) for kinds in (*([kind] for kind in ANSWERABLE), UNANSWERABLE, [""])
            ]
            lines.append(f"| {world} | {arm} | {name} | " + " | ".join(f"{cell:.0f}" for cell in cells) + " |")
    return "\n".join(lines)


def rates_table() -> str:
    """Gain on the development seed at each learning rate that was chosen from; bold is chosen."""
    found, rates = development_gains(), chosen_rates()
    lines = ["| unanswerable | Proposer | chosen is the rate of | " + " | ".join(f"{rate:g}" for rate in RATES) + " |"]
    lines.append("|---" * (3 + len(RATES)) + "|")
    for cell in CELLS:
        chosen = rates[cell]
        tried = [(chosen[0], rate) if cell[1] in TRAINED else (rate, 0.0) for rate in RATES]
        cells = [f"**{found[*cell, *one]:+.1f}**" if one == chosen else f"{found[*cell, *one]:+.1f}" for one in tried]
        role = "Proposer" if cell[1] in TRAINED else "Solver"
        lines.append(f"| {' | '.join(cell)} | {role} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def conclusion(runs: Runs) -> str:
    """One sentence: for each world, PasoDoble's Proposer and the oracle less the frozen one, and what that says."""
    parts = []
    for world in WORLDS:
        trained, bound = (less(runs, world, arm, "frozen") for arm in ("pasodoble", "oracle"))
        if trained[0] > trained[1]:
            verdict = "holds"
        elif bound[0] > bound[1]:
            verdict = "fails"
        else:
            verdict = "is not tested, as the oracle gains nothing either"
        parts.append(
            f"with {world} to an unanswerable question the claim {verdict}: against a frozen Proposer, PasoDoble's "
            f"trained one changes the Solver's gain by {shown(trained)} points, an oracle by {shown(bound)}"
        )
    text = "; ".join(parts) + "."
    return text[0].upper() + text[1:]


def report() -> str:
    """The tables, as they stand in the page; the last line is the conclusion."""
    runs = read_all(LOG)
    return "\n\n".join(
        [
            gains_table(runs),
            "Differences of the gains, paired by seed:",
            differences_table(runs),
            "What was proposed, in % of the questions, by the Solver's pass rate and by kind:",
            proposals_table(runs),
            "Gain on the development seed at each learning rate; the bold one is used.",
            rates_table(),
            conclusion(runs),
        ]
    )


def draw() -> None:
    """Accuracy over training, and the share of the proposed questions in the Solver's band, a column for each world."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    runs = read_all(LOG)
    figure, axes = pyplot.subplots(2, len(WORLDS), figsize=(10, 6.5), sharex=True, sharey="row", layout="constrained")
    for column, world in enumerate(WORLDS):
        for arm in ARMS:
            own = [records for setting, records in runs if (setting["world"], setting["arm"]) == (world, arm)]
            for row, value, skipped in (
                (0, lambda record: 100 * record["greedy"], 0),
                (1, lambda record: share([record], "band", LEARNABLE), 1),
            ):
                steps = [record["step"] for record in own[0][skipped:]]
                points = [mean_and_interval([value(record) for record in at]) for at in zip(*own, strict=True)][
                    skipped:
                ]
                means, widths = zip(*points, strict=True)
                axes[row, column].errorbar(steps, means, widths, capsize=2, label=arm)
        axes[0, column].set(title=f"unanswerable questions with {world}")
        axes[1, column].set(xlabel="steps")
    axes[0, 0].set_ylabel("held-out greedy accuracy, %")
    axes[1, 0].set_ylabel("proposed with 0.2 < p < 1, %")
    axes[0, 0].legend(fontsize=8)
    figure.savefig(RESULTS / "pasodoble.png", dpi=110)


if __name__ == "__main__":
    command_line(__doc__, run, report, draw)
