"""Save and load the state that a recipe keeps beside verl's checkpoint, with a checksum and the run's identity.

A file has two lines of JSON: a header with format, checksum and the identity of the run, then the state. verl names a
checkpoint as the latest at the end of its own save, so a trainer writes its state before it calls `super()`.
"""

import contextlib
import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from recipes.core import files
from recipes.core.settings import policies
from recipes.errors import StateError

REMEDY = "resume from another checkpoint, or start a new run in another trainer.default_local_dir"


def step_folder(config: Any, step: int) -> Path:
    """Where verl writes the checkpoint of a step."""
    return Path(config.trainer.default_local_dir) / f"global_step_{step}"


def resumed_folder(config: Any, step: int) -> Path:
    """The checkpoint that a run resumed from at this step, `trainer.resume_mode=resume_path` included."""
    if config.trainer.resume_mode == "resume_path":
        return Path(config.trainer.resume_from_path)
    return step_folder(config, step)


def save(
    path: str | Path, state: Mapping[str, Any], *, format: int = 1, identity: Mapping[str, Any] | None = None
) -> None:
    """Replace the file by this state.

    Args:
        state: JSON types.
        format: number of the state's layout; raise it when a reader has to know the difference.
        identity: what a run that resumes must have in common with this one (variant, fingerprint of the data, ...).

    Raises:
        ValueError: a NaN or an infinity in the state.
    """
    body = json.dumps(dict(state), ensure_ascii=True, allow_nan=False, sort_keys=True)
    header = {"format": format, "sha256": _digest(body), "identity": dict(identity or {})}
    files.write(path, f"{files.json_text(header)}\n{body}\n")


def load(path: str | Path, *, format: int = 1, identity: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What `save` wrote.

    Raises:
        StateError: the file is missing, damaged, of another format, or of a run with another identity.
    """
    path = Path(path)
    saved, run, body = _read(path)
    if saved != format:
        later = isinstance(saved, int) and saved > format
        way_out = "update this package, or " if later else "finish the run with the version that wrote it, or "
        raise StateError(f"{path} has format {saved} and this version reads format {format}: {way_out}{REMEDY}")
    expected = json.loads(json.dumps(dict(identity or {})))
    if run != expected:
        names = sorted(name for name in run.keys() | expected.keys() if run.get(name) != expected.get(name))
        detail = ", ".join(f"{name} was {run.get(name)!r} and is {expected.get(name)!r}" for name in names)
        raise StateError(f"{path} belongs to another run ({detail}): resume with the settings it had, or {REMEDY}")
    return json.loads(body)


METRICS_FILE = "metrics.json"


def save_metrics(folder: Path, metrics: Mapping[str, Any]) -> None:
    """Write a step's metrics into its checkpoint, for the run that resumes after a kill between the two.

    verl logs a step after it has saved it, woken the engines and validated. Killed in between, a run resumes behind the
    step, whose line nobody would write any more; what the step had measured by the time it was saved stands in for it.
    """
    numbers = {}
    for name, value in metrics.items():
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            number = float(value)
            if math.isfinite(number):
                numbers[name] = number
    files.write_json(folder / METRICS_FILE, numbers)


def load_metrics(folder: Path) -> dict[str, float]:
    """What `save_metrics` wrote, {} where it did not."""
    try:
        return dict(json.loads((folder / METRICS_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


SETTINGS_FILE = "settings.json"


def restored_settings(config: Any) -> dict[str, Any]:
    """What a checkpoint brings back whatever the config says: weights, and the optimizer's own numbers.

    torch keeps the learning rate in the state of the schedule as well. Changed on resume, they would be ignored without
    a word. A critic that is off has none.
    """
    groups = [f"{prefix}actor_rollout_ref" for prefix in policies(config)]
    owners = [(group, f"{group}.actor") for group in groups]
    if OmegaConf.select(config, "critic.enable"):
        owners.append(("critic", "critic"))
    keys = [f"{model}.model.path" for model, _ in owners]
    keys += [f"{trained}.optim.{name}" for _, trained in owners for name in ("lr", "weight_decay", "betas")]
    settings = {key: OmegaConf.select(config, key) for key in keys}
    return {key: list(v) if OmegaConf.is_list(v) else v for key, v in settings.items() if v is not None}


def save_settings(folder: Path, config: Any) -> None:
    """Write `restored_settings` into a checkpoint."""
    files.write_json(folder / SETTINGS_FILE, restored_settings(config))


def check_settings(folder: Path, config: Any) -> None:
    """Refuse to resume with another learning rate or another model than the checkpoint brings back.

    A model folder that is no longer there may have moved, and passes.

    Raises:
        StateError: with the key, what it was and what it is; or the file is damaged.
    """
    path = folder / SETTINGS_FILE
    try:
        was = dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}
    except (ValueError, TypeError) as error:
        raise StateError(f"{path} is damaged ({error}): {REMEDY}") from error
    now = restored_settings(config)
    for key in was.keys() & now.keys():
        moved = key.endswith(".path") and Path(was[key]).is_absolute() and not Path(was[key]).exists()
        if was[key] != now[key] and not moved:
            raise StateError(
                f"{key} was {was[key]} in {folder}, which brings it back, and is {now[key]} now: set it as it was, or "
                "start from the exported model in another trainer.default_local_dir"
            )


def check(path: str | Path) -> None:
    """Whether `save` wrote this file and every byte of its state is there, of whatever format and run.

    Raises:
        StateError: the file is missing or damaged.
    """
    _read(Path(path))


def _read(path: Path) -> tuple[Any, dict[str, Any], str]:
    """Format, identity and the state as text."""
    if not path.is_file():
        raise StateError(f"{path} is missing, so the checkpoint is not complete: {REMEDY}")
    try:
        first, body, rest = path.read_text(encoding="utf-8").split("\n")
        header = json.loads(first)
        version, digest, run = header["format"], header["sha256"], dict(header["identity"])
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(f"{path} is damaged ({error}): {REMEDY}") from error
    if rest or _digest(body) != digest:
        raise StateError(f"{path} is damaged, its content does not match its checksum: {REMEDY}")
    return version, run, body


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode("utf-8")).hexdigest()
