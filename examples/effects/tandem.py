"""Tandem: does a senior that writes with a frozen junior stay readable to it?

`python examples/effects/tandem.py run` trains what has no log yet, `report` prints the tables and draws the picture.
"""

import dataclasses
import functools
import re
from collections import defaultdict

import numpy as np
import torch
from policy import Responses, copy_of, log_probs_of, make_model, sample, warm_up
from readability import evaluate
from record import RESULTS, command_line, difference, mean_and_interval, read_all, run_all
from two_styles import (
    ALPHABET,
    JUNIOR,
    MAX_TOKENS,
    SENIOR,
    Writer,
    demonstrate,
    is_right,
    make_prompt,
    schedules_of,
    share_of_a,
    write_jointly,
)

from recipes.evaluation.engines import handoff_ratio
from recipes.evaluation.report import picture
from recipes.tandem.authorship import count_authorship, response_identity


@dataclasses.dataclass(frozen=True)
class Arm:
    """One way of training the senior.

    Attributes:
        prob_senior: the senior's share of the coins, or None to let it write alone.
        partner: who writes the other words: "junior", or "start", the senior's own frozen start.
        kl: coefficient of the KL penalty to the start, in the loss.
        wanted: style that a right response must be written in throughout to be rewarded; None pays for both.
    """

    prob_senior: float | None = None
    partner: str = "junior"
    kl: float = 0.0
    wanted: str | None = None


ARMS = {
    "tandem": Arm(prob_senior=0.5),
    "grpo": Arm(),
    "grpo, KL .1": Arm(kl=0.1),
    "only A pays": Arm(wanted="A"),
    "grpo, KL .001": Arm(kl=0.001),
    "only B pays": Arm(wanted="B"),
    "tandem, own start": Arm(prob_senior=0.5, partner="start"),
    "tandem p=.25": Arm(prob_senior=0.25),
    "tandem p=.75": Arm(prob_senior=0.75),
}
RATES = (3e-4, 1e-3, 3e-3)
DEVELOPMENT_SEED, SEEDS = 0, (1, 2, 3, 4, 5)
STEPS, PROMPTS, GROUP, MINI = 60, 16, 8, 8
EVERY = 20
# Without errors until this share of sums is right, in rounds of so many steps; then a round and a half with the errors
# of the writer. With errors from the first step on, or after a fixed number of steps, some seeds do not learn to add.
LEARNED, ROUND, MOST_ROUNDS = 0.95, 100, 20
WARM_UP_BATCH, WARM_UP_RATE = 64, 4e-3


def reward(arm: Arm, prompt: str, text: str) -> float:
    """1 or 0: the outcome, and in the bounding arms also the style."""
    readable = {None: True, "A": share_of_a(text) == 1.0, "B": share_of_a(text) == 0.0}[arm.wanted]
    return float(is_right(prompt, text) and readable)


@functools.lru_cache(maxsize=8)
def start_of(seed: int):
    """The senior and the junior that every arm of a seed begins with."""
    models = []
    for number, writer in enumerate((SENIOR, JUNIOR)):
        generator = torch.Generator().manual_seed(1000 * seed + number)
        model = make_model(ALPHABET, seed=1000 * seed + number, width=48, layers=1)
        teach(model, writer, generator)
        models.append(model.eval().requires_grad_(False))
    return tuple(models)


def teach(model, writer: Writer, generator: torch.Generator) -> None:
    """Warm the model up: first to add, then to the writer's errors.

    Raises:
        RuntimeError: the model does not learn to add.
    """
    clean = functools.partial(demonstrate, dataclasses.replace(writer, errors=(0.0, 0.0)))
    sizes = {"generator": generator, "batch": WARM_UP_BATCH, "rate": WARM_UP_RATE}
    for _ in range(MOST_ROUNDS):
        warm_up(model, ALPHABET, clean, steps=ROUND, **sizes)
        prompts = [make_prompt(generator) for _ in range(200)]
        texts = sample(model, ALPHABET, prompts, max_tokens=MAX_TOKENS, generator=generator).texts
        if sum(map(is_right, prompts, texts)) >= LEARNED * len(prompts):
            break
    else:
        raise RuntimeError(f"not {LEARNED:.0%} of sums right after {MOST_ROUNDS} rounds of {ROUND} steps")
    warm_up(model, ALPHABET, functools.partial(demonstrate, writer), steps=3 * ROUND // 2, **sizes)


def train(setting: dict):
    """One run: yields an evaluation at the start, every `EVERY` steps and at the end."""
    arm, seed = ARMS[setting["arm"]], setting["seed"]
    start, junior = start_of(seed)
    senior = copy_of(start).requires_grad_(True)
    partner = junior if arm.partner == "junior" else start
    optimizer = torch.optim.AdamW(senior.parameters(), lr=setting["rate"], weight_decay=0.0)
    generator = torch.Generator().manual_seed(1000 * seed + 7)
    yield {"step": 0, **evaluate(senior, junior, seed)}
    for step in range(1, setting["steps"] + 1):
        learned = take_step(arm, senior, partner, start, optimizer, generator, seed=seed, step=step)
        if step % EVERY == 0 or step == setting["steps"]:
            yield {"step": step, **learned, **evaluate(senior, junior, seed)}


def take_step(arm: Arm, senior, partner, start, optimizer, generator: torch.Generator, *, seed: int, step: int) -> dict:
    """Sample `PROMPTS` x `GROUP` responses and make two updates of verl's GRPO, gated by the authorship mask."""
    prompts = [prompt for prompt in (make_prompt(generator) for _ in range(PROMPTS)) for _ in range(GROUP)]
    if arm.prob_senior is None:
        responses = sample(senior, ALPHABET, prompts, max_tokens=MAX_TOKENS, generator=generator)
        mask = responses.mask
    else:
        identities = [response_identity(row // GROUP, step, row % GROUP, False) for row in range(len(prompts))]
        schedules = schedules_of("word", arm.prob_senior, seed, identities)
        responses, mask = write_jointly(senior, partner, prompts, schedules, generator)
    rewards = torch.tensor([reward(arm, *pair) for pair in zip(prompts, responses.texts, strict=True)])
    update(senior, start, optimizer, responses, mask, rewards, kl=arm.kl)
    counts = [
        count_authorship(row[: int(n)].int().tolist()) for row, n in zip(mask, responses.mask.sum(1), strict=True)
    ]
    return {
        "reward": float(rewards.mean()),
        "trained_share": sum(count.senior_tokens for count in counts) / sum(count.tokens for count in counts),
    }


def update(senior, start, optimizer, responses: Responses, mask, rewards, *, kl: float) -> None:
    """verl's group advantages and clipped loss on the tokens of `mask` (B, T), and its low-variance KL to `start`."""
    from verl.trainer.ppo import core_algos

    config = _actor_config()
    token_rewards = torch.zeros(mask.shape)
    token_rewards[:, 0] = rewards
    groups = np.repeat(np.arange(len(rewards) // GROUP), GROUP)
    advantages, _ = core_algos.compute_grpo_outcome_advantage(token_rewards, mask.float(), groups)
    with torch.no_grad():
        before = log_probs_of(senior, responses.prompts, responses.ids)
        reference = log_probs_of(start, responses.prompts, responses.ids) if kl else None
    order = torch.arange(len(rewards)).split(MINI * GROUP)
    for rows in order:
        now = log_probs_of(senior, responses.prompts[rows], responses.ids[rows])
        # Padding has no log-probability; it is masked, and 0 keeps it out of the gradient.
        now, old, own = (torch.where(responses.mask[rows], x, 0.0) for x in (now, before[rows], advantages[rows]))
        loss, _ = core_algos.compute_policy_loss_vanilla(old, now, own, mask[rows].float(), config=config)
        if kl:
            held = torch.where(responses.mask[rows], reference[rows], 0.0)
            penalty = core_algos.kl_penalty_forward(now, held, "low_var_kl")
            loss = loss + kl * core_algos.agg_loss(penalty, mask[rows].float(), "token-mean")
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(senior.parameters(), 1.0)
        optimizer.step()


@functools.lru_cache(maxsize=1)
def _actor_config():
    from verl.workers.config import ActorConfig

    return ActorConfig(strategy="fsdp", rollout_n=GROUP, ppo_micro_batch_size_per_gpu=1, use_dynamic_bsz=False)


LOG = RESULTS / "tandem.jsonl"
# Arms whose learning rate is chosen on the development seed, and the arms that take it over.
CHOSEN = {
    "tandem": ("tandem p=.25", "tandem p=.75", "tandem, own start"),
    "grpo": (),
    "grpo, KL .001": (),
    "grpo, KL .1": (),
    "only A pays": ("only B pays",),
}


def run(workers: int) -> None:
    """The runs of the development seed, then each arm at its chosen rate with each reported seed."""
    development = [setting_of(arm, DEVELOPMENT_SEED, rate) for arm in CHOSEN for rate in RATES]
    run_all(train, development, LOG, workers=workers)
    rates = chosen_rates(read_all(LOG))
    run_all(train, [setting_of(arm, seed, rates[arm]) for arm in ARMS for seed in SEEDS], LOG, workers=workers)


def setting_of(arm: str, seed: int, rate: float) -> dict:
    name = re.sub(r"[^a-z0-9]+", "_", arm.lower())
    return {"name": f"seed{seed}_{name}_{rate:g}", "arm": arm, "seed": seed, "rate": rate, "steps": STEPS}


def chosen_rates(runs) -> dict[str, float]:
    """For each arm the rate with the highest solo accuracy at the end, which is what a user without a junior sees."""
    solo: dict[str, dict[float, float]] = defaultdict(dict)
    for setting, records in runs:
        if setting["seed"] == DEVELOPMENT_SEED:
            solo[setting["arm"]][setting["rate"]] = records[-1]["solo"]
    best = {arm: max(sorted(found), key=found.__getitem__) for arm, found in solo.items()}
    return best | {other: best[arm] for arm, others in CHOSEN.items() for other in others}


# column -> (heading, factor, digits)
COLUMNS = {
    "solo": ("solo", 100, 1),
    "word": ("word handoff", 100, 1),
    "sentence": ("sentence handoff", 100, 1),
    "word_ratio": ("word / solo", 1, 2),
    "sentence_ratio": ("sentence / solo", 1, 2),
    "cross_entropy": ("junior's cross-entropy", 1, 2),
    "excess": ("minus own", 1, 2),
    "fotu": ("FOTU", 1, 2),
    "a": ("style A", 100, 0),
    "junior": ("junior alone", 100, 1),
}
COMPARED = ("solo", "word", "sentence", "sentence_ratio", "cross_entropy", "fotu")


def ends_of(runs) -> tuple[dict[str, dict[str, dict[int, float]]], dict[str, float]]:
    """Arm -> column -> seed -> value at the last step, of the reported seeds, with "start" as an arm; and the rates."""
    values: dict = defaultdict(lambda: defaultdict(dict))
    rates: dict[str, float] = {}
    for setting, records in runs:
        if setting["seed"] == DEVELOPMENT_SEED:
            continue
        rates[setting["arm"]] = setting["rate"]
        for arm, record in (("start", records[0]), (setting["arm"], records[-1])):
            for column in COLUMNS:
                values[arm][column][setting["seed"]] = _value(record, column)
    return {arm: dict(columns) for arm, columns in values.items()}, rates


def _value(record: dict, column: str) -> float | None:
    joint = column.removesuffix("_ratio")
    return record[column] if joint == column else handoff_ratio(record[joint], record["solo"])


def interval(values: dict[int, float | None], factor: float, digits: int) -> str:
    """Mean and half-width; how many seeds have no value (no right response) is said instead where there are any."""
    known = [value * factor for value in values.values() if value is not None]
    if len(known) < len(values):
        return f"none in {len(values) - len(known)} of {len(values)}"
    mean, half = mean_and_interval(known)
    return f"{mean:.{digits}f} ± {half:.{digits}f}"


def report() -> str:
    """The tables and the conclusion in Markdown, from the kept logs alone."""
    values, rates = ends_of(read_all(LOG))
    seeds = len(values["start"]["solo"])
    lines = [
        f"After {STEPS} steps; mean over {seeds} seeds ± half of its 95 % interval; accuracies and shares in %, "
        "cross-entropy in nats per token.",
        "",
        "| arm | rate | " + " | ".join(heading for heading, _, _ in COLUMNS.values()) + " |",
        "|" + "---|" * (len(COLUMNS) + 2),
    ]
    for arm in ("start", *ARMS):
        cells = [interval(values[arm][column], factor, digits) for column, (_, factor, digits) in COLUMNS.items()]
        lines.append(f"| {arm} | {rates[arm]:g} | " if arm in rates else f"| {arm} | | ")
        lines[-1] += " | ".join(cells) + " |"
    lines += [
        "",
        "Tandem (p = .5) minus the other arm, paired by seed; **bold** where the interval excludes 0:",
        "",
        "| minus | " + " | ".join(COLUMNS[column][0] for column in COMPARED) + " |",
        "|" + "---|" * (len(COMPARED) + 1),
    ]
    for arm in (arm for arm in ("start", *ARMS) if arm != "tandem"):
        lines.append(f"| {arm} | " + " | ".join(_contrast(values, arm, column) for column in COMPARED) + " |")
    return "\n".join([*lines, "", conclusion(values)])


def _contrast(values, arm: str, column: str) -> str:
    _, factor, digits = COLUMNS[column]
    if any(value is None for value in [*values["tandem"][column].values(), *values[arm][column].values()]):
        return "not defined"
    mean, half = (factor * number for number in difference(values["tandem"][column], values[arm][column]))
    cell = f"{mean:+.{digits}f} ± {half:.{digits}f}"
    return f"**{cell}**" if abs(mean) > half else cell


def conclusion(values) -> str:
    """One sentence: what the two measures of the claim say about tandem against GRPO alone."""
    handoff, handoff_half = (100 * x for x in difference(values["tandem"]["sentence"], values["grpo"]["sentence"]))
    surprise, surprise_half = difference(values["tandem"]["cross_entropy"], values["grpo"]["cross_entropy"])
    solo, solo_half = (100 * x for x in difference(values["tandem"]["solo"], values["grpo"]["solo"]))
    readable = [handoff > handoff_half, -surprise > surprise_half]
    verdict = {2: "holds", 1: "holds in one of its two measures", 0: "is not confirmed"}[sum(readable)]
    return (
        f"In this world the claim {verdict}: against GRPO alone, tandem changes sentence handoff by {handoff:+.1f} ± "
        f"{handoff_half:.1f} points, the junior's cross-entropy by {surprise:+.2f} ± {surprise_half:.2f} nats per "
        f"token, and solo accuracy by {solo:+.1f} ± {solo_half:.1f} points."
    )


DRAWN = ("tandem", "grpo", "grpo, KL .1", "only A pays", "only B pays")


def draw() -> None:
    """Curves over training: mean over the seeds, and its interval as a band."""
    curves: dict = defaultdict(lambda: defaultdict(list))
    for setting, records in read_all(LOG):
        if setting["seed"] != DEVELOPMENT_SEED:
            for record in records:
                curves[setting["arm"]][record["step"]].append(record)
    panels = ("solo", "sentence", "cross_entropy", "a")
    titles = ("solo accuracy, %", "sentence handoff, %", "junior's cross-entropy, nats per token", "style A, %")
    with picture(RESULTS / "tandem.png", len(panels), inches=(4.5, 3.4)) as axes:
        for axis, column, title in zip(axes, panels, titles, strict=True):
            factor = COLUMNS[column][1]
            for arm in DRAWN:
                steps = sorted(curves[arm])
                points = [
                    mean_and_interval([factor * record[column] for record in curves[arm][step]]) for step in steps
                ]
                means, halves = np.array(points).T
                (line,) = axis.plot(steps, means, label=arm, markersize=4)
                axis.fill_between(
                    steps, means - halves, means + halves, color=line.get_color(), alpha=0.15, linewidth=0
                )
            axis.set(title=title, xlabel="training step")
        axes[0].legend(fontsize=8)


if __name__ == "__main__":
    command_line(__doc__, run, report, draw)
