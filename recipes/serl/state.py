"""Recipe state beside verl's checkpoint: one JSON file, replaced atomically, checked when read."""

import hashlib
import json
from pathlib import Path

from recipes.common import files
from recipes.errors import StateError

FORMAT = 1


def write_state(path: str | Path, state: dict) -> None:
    """Write `state` (JSON types) so that `path` holds either the old content or the whole new one."""
    body = json.dumps(state, ensure_ascii=True, allow_nan=False, sort_keys=True)
    files.write(path, json.dumps({"format": FORMAT, "sha256": _digest(body)}) + "\n" + body + "\n")


def read_state(path: str | Path) -> dict:
    """The state that `write_state` wrote; raises `StateError` on a file missing, damaged or of another format."""
    path = Path(path)
    remedy = "resume from another checkpoint, or start a new run"
    if not path.is_file():
        raise StateError(f"state file {path} is missing although the checkpoint exists; {remedy}")
    try:
        header, body, rest = path.read_text(encoding="ascii").split("\n")
        header = json.loads(header)
        expected, found_format = header["sha256"], header["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(f"state file {path} is damaged ({error}); {remedy}") from error
    if found_format != FORMAT:
        raise StateError(f"state file {path} has format {found_format}, this version reads {FORMAT}; {remedy}")
    if rest or _digest(body) != expected:
        raise StateError(f"state file {path} is damaged: its content does not match its checksum; {remedy}")
    return json.loads(body)


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode("ascii")).hexdigest()
