"""Table and picture of the runs of a real model on a GPU: `python tests/gpu/picture.py`, from results/h200.jsonl."""

import json
from collections import defaultdict
from pathlib import Path

from recipes.evaluation.report import picture
from recipes.evaluation.stats import wilson

LOG = Path(__file__).parent / "results" / "h200.jsonl"
# Label, and recipe, arguments and seed of the log. Colours of Okabe and Ito, the light ones darkened.
RUNS = {
    "SPPO (preset=verl)": ("sppo", "preset=verl", 1, "#0072B2", "o"),
    "GRPO, baseline": ("sppo", "preset=grpo", 1, "#7D7D7D", "s"),
    "SeRL, no labels": ("serl", "variant=majority estimator=grpo", 1, "#009E73", "^"),
    "SeRL on shuffled labels": ("serl", "variant=ground_truth estimator=grpo, labels shuffled", 1, "#CC79A7", "v"),
    "tandem, senior alone": ("tandem", "preset=tandem", 1, "#D55E00", "D"),
    "Step-PPO (preset=outcome)": ("step_ppo", "preset=outcome", 1, "#B07A00", "P"),
    "PasoDoble": ("pasodoble", "variant=online", 1, "#8A6FD1", "X"),
}


def main() -> None:
    head, *rows = [json.loads(line) for line in LOG.read_text().splitlines()]
    runs = defaultdict(dict)
    for row in (row for row in rows if "recipe" in row):
        values = [value for key, value in row.items() if key.startswith("val-core/")]
        if values:
            runs[row["recipe"], row["arguments"], row["seed"]][row["step"]] = sum(values) / len(values)
    print("| run | " + " | ".join(("before", "step 5", "step 10")) + " |\n|---|---|---|---|")
    with picture(LOG.with_suffix(".png"), inches=(8, 4.2)) as (axes,):
        for shift, (label, (recipe, arguments, seed, colour, marker)) in enumerate(RUNS.items()):
            curve = dict(sorted(runs[recipe, arguments, seed].items()))
            print(
                f"| {label} | " + " | ".join(f"{100 * curve[s]:.1f}" if s in curve else "" for s in (0, 5, 10)) + " |"
            )
            bounds = [wilson(value * head["held_out"], head["held_out"]) for value in curve.values()]
            low, high = ([100 * abs(getattr(b, end) - b.mean) for b in bounds] for end in ("low", "high"))
            at = [step + 0.08 * (shift - 3) for step in curve]
            means = [100 * b.mean for b in bounds]
            axes.errorbar(at, means, yerr=[low, high], color=colour, marker=marker, capsize=2, label=label)
        axes.set(
            xlabel="training step", ylabel="held-out accuracy, %", ylim=(0, 100), title="SmolLM2-135M counts letters"
        )
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1))


if __name__ == "__main__":
    main()
