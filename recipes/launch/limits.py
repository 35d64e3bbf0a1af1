"""Limits in time that grow with the model: what is right for half a million parameters is no time for 70 billion."""

import os
from pathlib import Path

from recipes.launch.cluster import SYNC_TIMEOUT_SECONDS

SECONDS_PER_GIGABYTE = 2.0
"""For one acknowledgement of a weight sync: an engine may have to copy, shard and quantise everything it was sent."""
SYNC_VARIABLE = "VERL_DUETS_SYNC_TIMEOUT"


def weight_bytes(model: str) -> int:
    """Bytes of a model's weight files in a folder; 0 for one that is not a local folder."""
    folder = Path(model).expanduser()
    if not folder.is_dir():
        return 0
    sizes = {
        suffix: sum(path.stat().st_size for path in folder.glob(f"*{suffix}")) for suffix in (".safetensors", ".bin")
    }
    return max(sizes.values())


def sync_seconds(size: int) -> float:
    """Seconds for one acknowledgement of new weights of a model of so many bytes."""
    return float(SYNC_TIMEOUT_SECONDS) + SECONDS_PER_GIGABYTE * size / 1e9


def scale(model: str) -> None:
    """Let the limit of a weight sync grow with the model, unless the user has set another one."""
    if os.environ.get(SYNC_VARIABLE, SYNC_TIMEOUT_SECONDS) == SYNC_TIMEOUT_SECONDS:
        os.environ[SYNC_VARIABLE] = f"{sync_seconds(weight_bytes(model)):.0f}"
