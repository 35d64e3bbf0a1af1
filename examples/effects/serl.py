"""Do votes teach when the winner is usually right? SeRL's and TTRL's reward on a ladder of worlds (`effects/serl.md`).

`python examples/effects/serl.py run` trains what has no log yet, `report` prints the tables and draws the picture.
"""

import itertools
import math
import random
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from chains import ALPHABET, RESPONSE, accuracy, answer_of, gold_of, prompts, warmed_up
from policy import copy_of, sample
from record import RESULTS, Runs, by_seed, command_line, difference, mean_and_interval, read_all, run_all, shown
from torch import Tensor
from updates import clipped_surrogate, update

from recipes.serl.collection import Group
from recipes.serl.estimators import reinforce_pp_advantage
from recipes.serl.pool import Instruction
from recipes.serl.voting import judge_difficulty
from reward_fns.majority import Vote, majority_vote

LOG = RESULTS / "serl.jsonl"
# (wrong facts of 100, share of them that is off by the same amount, probability that a wrong fact is used)
RUNGS = {"A": (20, 0.0, 0.6), "B": (40, 0.0, 0.6), "C": (40, 0.6, 0.6), "D": (50, 1.0, 0.6), "E": (80, 1.0, 0.4)}
BOUNDS = {"[.2, .8]": (0.2, 0.8), "[.5, .95]": (0.5, 0.95)}
REWARDS = ("votes", "truth", "random")
RATES = (1e-4, 3e-4, 1e-3)
DEVELOPMENT_SEED, DEVELOPMENT_RUNGS, SEEDS = 0, "AC", (1, 2, 3, 4, 5)
# updates on demonstrations; with more wrong facts than not, rung E takes longer to learn the form
WARM_UP = {"A": 240, "B": 240, "C": 240, "D": 240, "E": 400}
TRAINING_PROMPTS, PROMPTS, ANSWERS, TRAINED, MOST_ROUNDS = 320, 24, 16, 16, 4
STEPS, UPDATES, EVALUATE = 16, 2, 8
HELD_OUT = 500


def rewards_of(kind: str, vote: Vote, gold: str, draw: random.Random) -> list[float]:
    """1 or 0 for each answer of a group: by its votes, by the truth, or by one of its distinct answers at random."""
    if kind == "votes":
        return list(vote.rewards)
    label = gold if kind == "truth" else draw.choice(sorted({answer for answer in vote.answers if answer}))
    return [float(answer == label) for answer in vote.answers]


def train(setting: dict) -> Iterable[dict]:
    """One run: a record at the start and after every `EVALUATE` steps, with a value for each step between.

    A setting that says nothing of `slip` and `warm_up` has the 0.6 and the 240 updates of rungs A to D.
    """
    seed = setting["seed"]
    model = copy_of(
        warmed_up(setting["wrong"], setting["same"], setting.get("slip", 0.6), seed, setting.get("warm_up", 240))
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=setting["rate"])
    generator, draw = torch.Generator().manual_seed(seed), random.Random(seed)
    pool, held_out = prompts(seed, TRAINING_PROMPTS), prompts(seed, HELD_OUT, held_out=True)
    order = random.Random(seed)
    visits = (place for _ in itertools.count() for place in order.sample(range(len(pool)), len(pool)))
    labels: dict[int, str] = {}
    metrics: list[dict] = []
    for step in range(setting["steps"] + 1):
        if step % EVALUATE == 0:
            found = {kind: accuracy(model, held_out, generator=generator, greedy=kind == "greedy") for kind in SCORES}
            yield {"step": step, **found, **{key: [one[key] for one in metrics] for key in METRICS if metrics}}
            metrics = []
        if step < setting["steps"]:
            rounds = collect(model, setting, pool, visits, generator, draw)
            metrics.append(metrics_of(rounds, labels))
            improve(model, optimizer, rounds, generator)


@dataclass
class Round:
    """The answers to one batch of prompts.

    Attributes:
        tensors: `prompts`, `ids`, `mask`, `old` log-probs and `advantages` of all answers, of one width.
        passed: share of right answers.
        groups: rows, vote and whether it is trained, of each group with a winner.
    """

    tensors: dict[str, Tensor]
    passed: float
    groups: list[tuple[slice, Group, bool]]


def collect(model, setting: dict, pool: Sequence[str], visits: Iterator[int], generator, draw) -> list[Round]:
    """Answer and vote until `TRAINED` groups pass the difficulty filter, in at most `MOST_ROUNDS` rounds."""
    rounds: list[Round] = []
    kept = 0
    while kept < TRAINED and len(rounds) < MOST_ROUNDS:
        places = list(itertools.islice(visits, PROMPTS))
        asked = [pool[place] for place in places for _ in range(ANSWERS)]
        responses = sample(model, ALPHABET, asked, max_tokens=RESPONSE + 1, generator=generator)
        answers = [answer_of(text) for text in responses.texts]
        scores, groups = torch.zeros(len(answers)), []
        for number, place in enumerate(places):
            own = slice(number * ANSWERS, (number + 1) * ANSWERS)
            vote = majority_vote(answers[own])
            if not vote.decided:
                continue
            gold, winner = gold_of(pool[place]), vote.answers[vote.winner]
            scores[own] = torch.tensor(rewards_of(setting["reward"], vote, gold, draw))
            group = Group(
                Instruction(place, pool[place], "dataset"), vote.agreement, vote.entropy, winner == gold, winner
            )
            stays = judge_difficulty(vote.agreement, low=setting["low"], high=setting["high"]) is None
            groups.append((own, group, stays and kept < TRAINED))
            kept += stays
        # the statistics of a round are taken before the filter, the recipe's default
        advantages, _ = reinforce_pp_advantage(scores, None, responses.mask, kl_coef=0.0)
        right = sum(answer == gold_of(prompt) for prompt, answer in zip(asked, answers, strict=True))
        tensors = {"ids": responses.ids, "mask": responses.mask, "old": responses.log_probs, "advantages": advantages}
        missing = RESPONSE + 1 - responses.ids.shape[1]
        tensors = {name: torch.nn.functional.pad(tensor, (0, missing)) for name, tensor in tensors.items()}
        rounds.append(Round({"prompts": responses.prompts, **tensors}, right / len(answers), groups))
    return rounds


def improve(model, optimizer, rounds: Sequence[Round], generator: torch.Generator) -> None:
    """`UPDATES` updates on the trained groups of a step."""
    chosen = [(one.tensors, rows) for one in rounds for rows, _, trained in one.groups if trained]
    if not chosen:
        return
    batch = {name: torch.cat([tensors[name][rows] for tensors, rows in chosen]) for name in chosen[0][0]}

    def loss(rows: Tensor, log_probs: Tensor) -> Tensor:
        return clipped_surrogate(batch["old"][rows], log_probs, batch["advantages"][rows], batch["mask"][rows])

    update(model, optimizer, batch["prompts"], batch["ids"], loss, parts=UPDATES, generator=generator)


METRICS = ("voted", "right", "trained", "trained_right", "passed", "agreement", "entropy", "flips")
SCORES = ("greedy", "sampled")


def metrics_of(rounds: Sequence[Round], labels: dict[int, str]) -> dict[str, float]:
    """Counts of a step: groups with a winner, those whose winner is right, the same of the trained groups; and means.

    `labels` holds each prompt's last label. `flips` is the share that changed, -1 before a prompt has returned.
    """
    groups = [group for one in rounds for _, group, _ in one.groups]
    trained = [group for one in rounds for _, group, stays in one.groups if stays]
    flips = [labels[g.instruction.idx] != g.answer for g in groups if g.instruction.idx in labels]
    labels |= {group.instruction.idx: group.answer for group in groups}
    return {
        "voted": len(groups),
        "right": sum(bool(group.label_correct) for group in groups),
        "trained": len(trained),
        "trained_right": sum(bool(group.label_correct) for group in trained),
        "passed": round(statistics.fmean(one.passed for one in rounds), 4),
        "agreement": round(statistics.fmean(group.agreement for group in groups), 4) if groups else 0.0,
        "entropy": round(statistics.fmean(group.entropy for group in groups), 4) if groups else 0.0,
        "flips": round(statistics.fmean(flips), 4) if flips else -1.0,
    }


def setting_of(rung: str, reward: str, bounds: str, seed: int, rate: float) -> dict:
    """What a run is run with; the name tells the arm, and the learning rate too on the development seed."""
    name = f"{rung}-{reward}-{bounds.strip('[]').replace(', ', '-')}-{seed}"
    wrong, same, slip = RUNGS[rung]
    low, high = BOUNDS[bounds]
    return {
        "name": name if seed != DEVELOPMENT_SEED else f"{name}-{rate:g}",
        "rung": rung,
        "wrong": wrong,
        "same": same,
        "slip": slip,
        "warm_up": WARM_UP[rung],
        "reward": reward,
        "bounds": bounds,
        "low": low,
        "high": high,
        "seed": seed,
        "rate": rate,
        "steps": STEPS,
    }


def arms() -> list[tuple[str, str]]:
    """(reward, bounds) of every arm; random labels are run with the first bounds alone."""
    return [(reward, bounds) for bounds in BOUNDS for reward in REWARDS if reward != "random" or bounds == "[.2, .8]"]


def chosen_rates() -> dict[tuple[str, str], float]:
    """The learning rate of each arm: largest mean gain over the development rungs. Random labels take the votes'."""
    gains: dict[tuple[str, str], dict[float, list[float]]] = {}
    for setting, records in read_all(LOG, "development"):
        arm = gains.setdefault((setting["reward"], setting["bounds"]), {})
        arm.setdefault(setting["rate"], []).append(gain_of(records))
    rates = {arm: max(found, key=lambda rate: statistics.fmean(found[rate])) for arm, found in gains.items()}
    return rates | {("random", bounds): rate for (reward, bounds), rate in rates.items() if reward == "votes"}


def gain_of(records: Sequence[dict], score: str = "greedy") -> float:
    """Held-out accuracy at the end less that at the start, in points."""
    return 100 * (records[-1][score] - records[0][score])


def run(workers: int) -> None:
    """Train every run that has no log, the development seed first."""
    development = [
        setting_of(rung, reward, bounds, DEVELOPMENT_SEED, rate)
        for rung in DEVELOPMENT_RUNGS
        for reward, bounds in arms()
        for rate in RATES
        if reward != "random"
    ]
    run_all(train, development, LOG, "development", workers=workers)
    rates = chosen_rates()
    # runs from one start stand together: it is warmed up once
    reported = [setting_of(rung, *arm, seed, rates[arm]) for seed in SEEDS for rung in RUNGS for arm in arms()]
    run_all(train, reported, LOG, workers=workers)


def label_accuracy(records: Sequence[dict], *, trained: bool, first: bool = False) -> float:
    """Share of groups whose winner is right, in %: of the trained or of all voted ones, of the run or its first step.

    NaN where there was no group.
    """
    right, number = ("trained_right", "trained") if trained else ("right", "voted")
    counts = [
        (record[right][0], record[number][0]) if first else (sum(record[right]), sum(record[number]))
        for record in records[1 : 2 if first else None]
    ]
    total = sum(number for _, number in counts)
    return 100 * sum(right for right, _ in counts) / total if total else math.nan


def ladder_table(runs: Runs) -> str:
    """Label accuracies and gains of every rung and both bounds."""
    lines = [
        "| rung | bounds | greedy at the start | votes right at the start | trained labels right, first step |"
        " **whole run** | gain: votes | truth | random | votes - truth |",
        "|" + "---|" * 10,
    ]
    for rung in RUNGS:
        for bounds in BOUNDS:

            def cell(reward: str, value=gain_of, rung=rung, bounds=bounds) -> dict[int, float]:
                return by_seed(runs, value, rung=rung, bounds=bounds, reward=reward)

            random_labels = cell("random")
            means = [
                statistics.fmean(cell("votes", value).values())
                for value in (
                    lambda records: 100 * records[0]["greedy"],
                    lambda records: label_accuracy(records, trained=False, first=True),
                    lambda records: label_accuracy(records, trained=True, first=True),
                    lambda records: label_accuracy(records, trained=True),
                )
            ]
            lines.append(
                f"| {rung} | {bounds} | "
                + " | ".join(f"{mean:.1f}" for mean in means[:3])
                + f" | **{means[3]:.1f}** | "
                + " | ".join(
                    [
                        shown(mean_and_interval(list(cell("votes").values()))),
                        shown(mean_and_interval(list(cell("truth").values()))),
                        shown(mean_and_interval(list(random_labels.values()))) if random_labels else "",
                        shown(difference(cell("votes"), cell("truth"))),
                    ]
                )
                + " |"
            )
    return "\n".join(lines)


# Gold-free signals of the first `EVALUATE` steps, and label accuracy beside them.
SIGNALS: dict[str, Callable[[list[dict]], float]] = {
    "agreement (majority ratio)": lambda records: statistics.fmean(records[1]["agreement"]),
    "rise of the agreement": lambda records: records[1]["agreement"][-1] - records[1]["agreement"][0],
    "entropy of the answers": lambda records: statistics.fmean(records[1]["entropy"]),
    "flip rate (of the whole run: prompts return late)": lambda records: statistics.fmean(
        flip for record in records[1:] for flip in record["flips"] if flip >= 0
    ),
    "label accuracy of all groups (needs gold)": lambda records: sum(records[1]["right"]) / sum(records[1]["voted"]),
    "the same of the first step, less greedy accuracy at the start": lambda records: (
        label_accuracy(records, trained=False, first=True) - 100 * records[0]["greedy"]
    ),
}


def ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1; equal values share their mean rank."""
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) + 1) / 2 for value in values]


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Rank correlation."""
    return statistics.correlation(ranks(first), ranks(second))


def separation(signals: Sequence[float], fell: Sequence[bool]) -> float:
    """Probability that a run that fell has the larger signal than one that did not (ties 1/2); NaN without both."""
    pairs = [
        (one, other)
        for one, a in zip(signals, fell, strict=True)
        if a
        for other, b in zip(signals, fell, strict=True)
        if not b
    ]
    return statistics.fmean((a > b) + (a == b) / 2 for a, b in pairs) if pairs else math.nan


def signals_table(runs: Runs) -> str:
    """How well each early signal ranks the runs on votes by their gain, and tells those that fall below their start."""
    voted = [(setting["seed"], records) for setting, records in runs if setting["reward"] == "votes"]
    lines = [
        f"| signal in the first {EVALUATE} steps | rank correlation with the gain | separates runs that fell |",
        "|---|---|---|",
    ]
    for name, signal in SIGNALS.items():
        correlations = []
        for seed in SEEDS:
            own = [records for one, records in voted if one == seed]
            correlations.append(spearman([signal(one) for one in own], [gain_of(one) for one in own]))
        told = separation([signal(one) for _, one in voted], [gain_of(one) < 0 for _, one in voted])
        mean, width = mean_and_interval(correlations)
        lines.append(f"| {name} | {mean:+.2f} ± {width:.2f} | {told:.2f} |")
    return "\n".join(lines)


def rates_table() -> str:
    """Gains at each learning rate on the development seed, and what the labels of the trained groups came to."""
    lines = ["| rung | bounds | reward | " + " | ".join(f"{rate:g}" for rate in RATES) + " |"]
    lines.append("|" + "---|" * (3 + len(RATES)))
    runs = read_all(LOG, "development")
    for rung in DEVELOPMENT_RUNGS:
        for reward, bounds in arms():
            if reward == "random":
                continue
            cells = []
            for rate in RATES:
                (records,) = [
                    records
                    for setting, records in runs
                    if (setting["rung"], setting["reward"], setting["bounds"], setting["rate"])
                    == (rung, reward, bounds, rate)
                ]
                cells.append(f"{gain_of(records):+.1f} ({label_accuracy(records, trained=True):.0f})")
            lines.append(f"| {rung} | {bounds} | {reward} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def conclusion(runs: Runs) -> str:
    """Mean gains of the cells in which over 80 %, 50 to 80 % and under 50 % of the trained labels are right."""

    def mean_of(value: Callable[[list[dict]], float], cell: tuple[str, str]) -> float:
        return statistics.fmean(by_seed(runs, value, rung=cell[0], bounds=cell[1], reward="votes").values())

    def gain(kept: Sequence[tuple[str, str]], reward: str) -> str:
        found = [by_seed(runs, gain_of, rung=rung, bounds=bounds, reward=reward) for rung, bounds in kept]
        return shown(mean_and_interval([statistics.fmean(one[seed] for one in found) for seed in SEEDS]))

    shares = {
        (rung, bounds): mean_of(lambda records: label_accuracy(records, trained=True), (rung, bounds))
        for rung in RUNGS
        for bounds in BOUNDS
    }
    ahead = {
        cell: mean_of(
            lambda records: label_accuracy(records, trained=False, first=True) - 100 * records[0]["greedy"], cell
        )
        for cell in shares
    }
    kinds = (
        ("over 80 % of the trained labels are right", [cell for cell, share in shares.items() if share > 80]),
        ("50 to 80 % are right", [cell for cell, share in shares.items() if 50 <= share <= 80]),
        ("under 50 % are right", [cell for cell, share in shares.items() if share < 50]),
        ("the vote is right more often than the greedy response at the start", [c for c, d in ahead.items() if d > 0]),
        ("it is right less often", [cell for cell, lead in ahead.items() if lead <= 0]),
    )
    return "\n".join(
        f"- Where {words} ({', '.join(f'{rung} {bounds}' for rung, bounds in kept)}): "
        f"votes {gain(kept, 'votes')}, truth {gain(kept, 'truth')}."
        for words, kept in kinds
        if kept
    )


def report() -> str:
    """The tables, as they stand in the page."""
    runs = read_all(LOG)
    rates = ", ".join(sorted({f"{rate:g}" for rate in chosen_rates().values()}))
    return "\n\n".join(
        [
            ladder_table(runs),
            conclusion(runs),
            "Gold-free signals:",
            signals_table(runs),
            f"Gain by learning rate on the development seed, in brackets the share of trained labels that were right; "
            f"chosen: {rates}.",
            rates_table(),
        ]
    )


def draw_picture(runs: Runs) -> None:
    """Gain against the label accuracy of the trained groups; truth stands at the accuracy its votes had."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    for axis, bounds in zip(axes, BOUNDS, strict=True):
        for place, rung in enumerate(RUNGS):
            shares = by_seed(
                runs, lambda records: label_accuracy(records, trained=True), rung=rung, bounds=bounds, reward="votes"
            )
            for reward, marker, filled in (("votes", "o", True), ("truth", "^", False), ("random", "x", True)):
                gains = by_seed(runs, gain_of, rung=rung, bounds=bounds, reward=reward)
                if gains:
                    axis.scatter(
                        [shares[seed] for seed in gains],
                        list(gains.values()),
                        marker=marker,
                        color=f"C{place}" if filled else None,
                        facecolors=None if filled else "none",
                        edgecolors=None if filled else f"C{place}",
                        label=f"{rung}: {reward}" if bounds == "[.2, .8]" else None,
                    )
        axis.axhline(0, color="grey", linewidth=0.8)
        axis.axvline(80, color="grey", linewidth=0.8, linestyle=":")
        axis.set(title=f"agreement in {bounds}", xlabel="trained groups whose majority is right, %")
    axes[0].set_ylabel("gain in held-out greedy accuracy, points")
    figure.legend(loc="outside right upper", fontsize=8)
    figure.savefig(RESULTS / "serl.png", dpi=110)


if __name__ == "__main__":
    command_line(__doc__, run, report, lambda: draw_picture(read_all(LOG)))
