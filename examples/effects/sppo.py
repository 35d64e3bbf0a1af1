"""Is the squared regression ahead of policy gradients at equal data? SPPO against its neighbours (`effects/sppo.md`).

`python examples/effects/sppo.py run` trains what has no log yet, `report` prints the tables and draws the picture.
"""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from chains import ALPHABET, RESPONSE, accuracy, answer_of, gold_of, prompts, warmed_up
from intransitive import ROUNDS, play
from policy import Responses, copy_of, sample
from record import RESULTS, Runs, by_seed, command_line, difference, mean_and_interval, read_all, run_all, shown
from torch import Tensor
from updates import clipped_surrogate, update

from recipes.serl.estimators import grpo_advantage
from recipes.sppo.advantage import sppo_target, win_rates
from recipes.sppo.loss import sppo_loss

LOG = RESULTS / "sppo.jsonl"
ETA = 1.0


@dataclass(frozen=True)
class Arm:
    """One way of training the policy.

    Attributes:
        loss: "soft" is SPPO on scores with the soft baseline, "paper" SPPO on win rates, "grpo" and "mean" are PPO's
            clipped surrogate with the reward normalised within the prompt, or less the batch mean.
        group: responses to each prompt.
        eta: strength of SPPO's target; the others have none.
    """

    loss: str
    group: int
    eta: float = ETA


ARMS = {
    "sppo n=1": Arm("soft", 1),
    "reinforce n=1": Arm("mean", 1),
    "sppo n=8": Arm("soft", 8),
    "grpo n=8": Arm("grpo", 8),
    "sppo paper K=5": Arm("paper", 5),
}
MATCHED = (("sppo n=1", "reinforce n=1"), ("sppo n=8", "grpo n=8"))
ALSO = (
    ("sppo paper K=5", "grpo n=8"),
    ("sppo paper K=5", "sppo n=8"),
    ("sppo n=1", "grpo n=8"),
    ("reinforce n=1", "grpo n=8"),
)
OTHER_ETAS = (0.25, 4.0)
STRENGTHS = {
    f"{arm} eta={eta:g}": replace(ARMS[arm], eta=eta) for arm in ("sppo n=1", "sppo n=8") for eta in OTHER_ETAS
}
UPDATES = (2, 16)
RATES = (1e-4, 3e-4, 1e-3)
DEVELOPMENT_SEED, SEEDS = 0, tuple(range(1, 11))
WRONG, SAME, SLIP, WARM_UP = 40, 0.0, 0.6, 240
# 240 responses divide into groups of 1, 5 and 8 and into 2 and 16 mini-batches
BATCH, STEPS, EVALUATE, HELD_OUT, TRAINING_PROMPTS = 240, 20, 5, 500, 4000
PREFERENCES = ("judge", "Bradley-Terry", "greater score")


def loss_of(
    arm: Arm, rewards: Tensor, index: Sequence[int], responses: Responses
) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss of an arm on (rows, new log-probs), with its advantages or targets from the rewards (B,) of a step."""
    old, mask = responses.log_probs, responses.mask
    if arm.loss in ("soft", "paper"):
        if arm.loss == "soft":
            scope = "batch" if arm.group == 1 else "prompt"
            target = sppo_target(rewards, index, eta=arm.eta, scope=scope, baseline="softmean")
        else:
            target = sppo_target(win_rates(rewards, index), index, eta=arm.eta, scope="prompt", baseline="half")
        return lambda rows, new: sppo_loss(old[rows], new, target[rows], mask[rows])
    if arm.loss == "grpo":
        advantages, _ = grpo_advantage(rewards, index, mask)
    else:
        advantages = (rewards - rewards.mean())[:, None] * mask
    return lambda rows, new: clipped_surrogate(old[rows], new, advantages[rows], mask[rows])


def train(setting: dict) -> Iterable[dict]:
    """One run: a record at the start and after every `EVALUATE` steps."""
    if "preference" in setting:
        yield from play(setting)
        return
    seed = setting["seed"]
    model = copy_of(warmed_up(WRONG, SAME, SLIP, seed, setting.get("warm_up", WARM_UP)))
    optimizer = torch.optim.Adam(model.parameters(), lr=setting["rate"])
    generator = torch.Generator().manual_seed(seed)
    pool, held_out = prompts(seed, TRAINING_PROMPTS), prompts(seed, HELD_OUT, held_out=True)
    arm = (ARMS | STRENGTHS)[setting["arm"]]
    for step in range(setting["steps"] + 1):
        if step % EVALUATE == 0:
            found = {
                kind: accuracy(model, held_out, generator=generator, greedy=kind == "greedy")
                for kind in ("greedy", "sampled")
            }
            yield {"step": step, **found}
        if step < setting["steps"]:
            places = torch.randint(len(pool), (BATCH // arm.group,), generator=generator).tolist()
            index = [number for number in range(BATCH // arm.group) for _ in range(arm.group)]
            asked = [pool[places[number]] for number in index]
            responses = sample(model, ALPHABET, asked, max_tokens=RESPONSE + 1, generator=generator)
            right = [answer_of(text) == gold_of(prompt) for text, prompt in zip(responses.texts, asked, strict=True)]
            update(
                model,
                optimizer,
                responses.prompts,
                responses.ids,
                loss_of(arm, torch.tensor(right, dtype=torch.float32), index, responses),
                parts=setting["updates"],
                generator=generator,
            )


def setting_of(arm: str, updates: int, seed: int, rate: float) -> dict:
    """What a run is run with; the name tells the learning rate on the development seed alone."""
    name = f"{arm.replace(' ', '_').replace('=', '')}-{updates}-{seed}"
    return {
        "name": f"{name}-{rate:g}" if seed == DEVELOPMENT_SEED else name,
        "arm": arm,
        "updates": updates,
        "seed": seed,
        "rate": rate,
        "steps": STEPS,
    }


def learning(records: Sequence[dict], score: str = "greedy") -> float:
    """Mean held-out accuracy over the evaluations after the start, in %: how fast and how far."""
    return 100 * statistics.fmean(record[score] for record in records if record["step"])


def chosen_rates() -> dict[tuple[str, int], float]:
    """The learning rate of each arm and number of updates, the best on the development seed."""
    found: dict[tuple[str, int], dict[float, float]] = {}
    for setting, records in read_all(LOG, "development"):
        found.setdefault((setting["arm"], setting["updates"]), {})[setting["rate"]] = learning(records)
    return {arm: max(rates, key=rates.__getitem__) for arm, rates in found.items()}


def run(workers: int) -> None:
    """Train every run that has no log, the development seed first; then the game."""
    arms = [(arm, updates) for updates in UPDATES for arm in (*ARMS, *STRENGTHS)]
    development = [setting_of(*arm, DEVELOPMENT_SEED, rate) for arm in arms for rate in RATES]
    run_all(train, development, LOG, "development", workers=workers)
    rates = chosen_rates()
    # runs from one start stand together: it is warmed up once
    reported = [setting_of(*arm, seed, rates[arm]) for seed in SEEDS for arm in arms]
    run_all(train, reported, LOG, workers=workers)
    games = [
        {"name": f"{kind.replace(' ', '_')}-{seed}", "preference": kind, "seed": seed, "rounds": ROUNDS}
        for kind in PREFERENCES
        for seed in SEEDS
    ]
    run_all(train, games, LOG, "game", workers=workers)


def final(records: Sequence[dict], score: str = "greedy") -> float:
    """Held-out accuracy at the end, in %."""
    return 100 * records[-1][score]


def arms_table(runs: Runs) -> str:
    """Accuracy of every arm: at the start, as a mean over training, at the end."""
    rates = chosen_rates()
    lines = [
        "| arm | updates per step | learning rate | start | greedy, mean over training | greedy, end | sampled, end |",
        "|---|---|---|---|---|---|---|",
    ]
    for updates in UPDATES:
        for arm in ARMS:
            start = statistics.fmean(
                by_seed(runs, lambda records: 100 * records[0]["greedy"], arm=arm, updates=updates).values()
            )
            columns = [
                mean_and_interval(list(by_seed(runs, value, arm=arm, updates=updates).values()))
                for value in (learning, final, lambda records: final(records, "sampled"))
            ]
            lines.append(
                f"| {arm} | {updates} | {rates[arm, updates]:g} | {start:.1f} | "
                + " | ".join(f"{mean:.1f} ± {width:.1f}" for mean, width in columns)
                + " |"
            )
    return "\n".join(lines)


def difference_of(runs: Runs, value: Callable[[list[dict]], float], first: str, second: str, updates: int):
    """Mean and half-width of first - second, paired by seed."""
    return difference(*(by_seed(runs, value, arm=arm, updates=updates) for arm in (first, second)))


Cells = Callable[[str, str, int], Iterable[tuple[float, float]]]


def differences_table(pairs: Sequence[tuple[str, str]], headings: Sequence[str], cells: Cells) -> str:
    """A row for each pair of arms and number of updates, with the differences that `cells` finds for it."""
    lines = ["| difference | updates per step | " + " | ".join(headings) + " |", "|---" * (2 + len(headings)) + "|"]
    lines += [
        f"| {first} - {second} | {updates} | " + " | ".join(map(shown, cells(first, second, updates))) + " |"
        for first, second in pairs
        for updates in UPDATES
    ]
    return "\n".join(lines)


def main_differences(runs: Runs) -> str:
    """Differences at the strength of the claim: first the pairs that it is about."""
    return differences_table(
        (*MATCHED, *ALSO),
        ("mean over training", "end"),
        lambda first, second, updates: [
            difference_of(runs, value, first, second, updates) for value in (learning, final)
        ],
    )


def strengths(runs: Runs) -> str:
    """SPPO less its policy gradient at each strength of the target, mean over training."""
    etas = sorted((ETA, *OTHER_ETAS))
    return differences_table(
        MATCHED,
        [f"eta={eta:g}" for eta in etas],
        lambda first, second, updates: [
            difference_of(runs, learning, first if eta == ETA else f"{first} eta={eta:g}", second, updates)
            for eta in etas
        ],
    )


def game_table(games: Runs) -> str:
    """What self-play ends at with each kind of preference."""
    lines = [
        "| preference | average policy | its gap | last policy's gap |",
        "|---|---|---|---|",
    ]
    for kind in PREFERENCES:
        last = [records[-1] for setting, records in games if setting["preference"] == kind]
        shares = [statistics.fmean(record["average"][place] for record in last) for place in range(3)]
        gaps = [mean_and_interval([record[gap] for record in last]) for gap in ("average_gap", "policy_gap")]
        lines.append(
            f"| {kind} | {', '.join(f'{share:.2f}' for share in shares)} | "
            + " | ".join(f"{mean:.3f} ± {width:.3f}" for mean, width in gaps)
            + " |"
        )
    return "\n".join(lines)


def rates_table() -> str:
    """Mean over training at each learning rate on the development seed; bold is chosen."""
    rates = chosen_rates()
    found = {
        (setting["arm"], setting["updates"], setting["rate"]): learning(records)
        for setting, records in read_all(LOG, "development")
    }
    lines = ["| arm | updates per step | " + " | ".join(f"{rate:g}" for rate in RATES) + " |"]
    lines.append("|---|---|" + "---|" * len(RATES))
    for updates in UPDATES:
        for arm in (*ARMS, *STRENGTHS):
            cells = [
                f"**{found[arm, updates, rate]:.1f}**"
                if rate == rates[arm, updates]
                else f"{found[arm, updates, rate]:.1f}"
                for rate in RATES
            ]
            lines.append(f"| {arm} | {updates} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def conclusion(runs: Runs, games: Runs) -> str:
    """One sentence: in how many of the matched pairs SPPO is ahead, by the mean over training; and the game."""
    cells = {
        (first, second, updates): difference_of(runs, learning, first, second, updates)
        for first, second in MATCHED
        for updates in UPDATES
    }
    ahead = sum(mean > width for mean, width in cells.values())
    behind = sum(-mean > width for mean, width in cells.values())
    verdict = "holds" if ahead == len(cells) else "is not confirmed"
    found = "; ".join(
        f"{first} less {second} {shown(cell)} ({updates} updates)" for (first, second, updates), cell in cells.items()
    )
    gaps = {
        kind: mean_and_interval(
            [records[-1]["average_gap"] for setting, records in games if setting["preference"] == kind]
        )
        for kind in PREFERENCES
    }
    game = ", ".join(f"{gap:.3f} ± {width:.3f} ({kind})" for kind, (gap, width) in gaps.items())
    return (
        f"In this world the claim {verdict}: of {len(cells)} matched pairs SPPO is ahead in {ahead} and behind in "
        f"{behind}, with differences in accuracy, as its mean over training in points, of {found}; in the game without "
        f"a best response, the best answer to self-play's average policy wins more than half by {game}."
    )


def report() -> str:
    """The tables, as they stand in the page; the last line is the conclusion."""
    runs, games = read_all(LOG), read_all(LOG, "game")
    return "\n\n".join(
        [
            arms_table(runs),
            main_differences(runs),
            "Other strengths of the target, mean over training:",
            strengths(runs),
            "Mean over training at each learning rate on the development seed; the bold one is used.",
            rates_table(),
            "The game:",
            game_table(games),
            conclusion(runs, games),
        ]
    )


def draw_picture(runs: Runs, games: Runs) -> None:
    """Greedy accuracy over training, a panel per number of updates; and the gap of the average policy in the game."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
    for axis, updates in zip(axes, UPDATES, strict=False):
        for arm in ARMS:
            own = [records for setting, records in runs if (setting["arm"], setting["updates"]) == (arm, updates)]
            steps = [record["step"] for record in own[0]]
            values = [
                mean_and_interval([100 * records[place]["greedy"] for records in own]) for place in range(len(steps))
            ]
            axis.errorbar(steps, [mean for mean, _ in values], [width for _, width in values], capsize=2, label=arm)
        axis.set(title=f"{updates} updates per step", xlabel=f"steps of {BATCH} responses", ylabel="greedy accuracy, %")
    axes[0].legend(fontsize=8)
    for kind in PREFERENCES:
        own = [records for setting, records in games if setting["preference"] == kind]
        rounds = [record["round"] for record in own[0]]
        axes[2].plot(
            rounds,
            [statistics.fmean(records[place]["average_gap"] for records in own) for place in range(len(rounds))],
            label=kind,
        )
    axes[2].axhline(0, color="grey", linewidth=0.8)
    axes[2].set(title="circle of preferences", xlabel="rounds of self-play", ylabel="gap of the average policy")
    axes[2].legend(fontsize=8)
    figure.savefig(RESULTS / "sppo.png", dpi=110)


if __name__ == "__main__":
    command_line(__doc__, run, report, lambda: draw_picture(read_all(LOG), read_all(LOG, "game")))
