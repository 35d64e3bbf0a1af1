"""A step's metrics in its checkpoint, for the run that resumes after a kill between the two.

verl logs a step after it has saved it, woken the engines and validated. Killed in between, a run resumes behind the
step, whose line nobody would write any more. What the step had measured by the time it was saved stands in for it.
"""

import json
import math
from pathlib import Path
from typing import Any

from recipes.core import files, state

FILE = "metrics.json"


def keep(trainer: Any) -> None:
    """Let a V1 trainer of verl write its step's metrics into each checkpoint, before verl names it as the latest."""
    step, save = trainer.step, trainer._save_checkpoint
    measured: dict[str, Any] = {}

    def take_step(metrics: dict[str, Any], timing_raw: dict[str, Any]) -> Any:
        nonlocal measured
        measured = metrics
        return step(metrics, timing_raw)

    def save_checkpoint() -> None:
        folder = state.step_folder(trainer.config, trainer.global_steps)
        numbers = {"training/global_step": float(trainer.global_steps)}
        for name, value in measured.items():
            try:
                number = float(value)
            except (TypeError, ValueError, RuntimeError):
                # Text, a list, a tensor of several elements: no number of this step.
                continue
            if math.isfinite(number):
                numbers[name] = number
        files.write_json(folder / FILE, numbers)
        save()

    trainer.step, trainer._save_checkpoint = take_step, save_checkpoint


def kept(folder: Path) -> dict[str, float]:
    """What a checkpoint holds of its step's metrics, {} for one without."""
    try:
        return dict(json.loads((folder / FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}
