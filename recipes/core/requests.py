"""What the driver of a run and its trainer tell each other, through the key-value store of Ray.

The driver receives the scheduler's signals, the trainer runs in another process and maybe on another host. The driver
puts ``stop`` and ``save``; the trainer puts ``step``, the step that it is in, and ``stopped``, the one after which it
has ended as asked.
"""

import hashlib
import os
from dataclasses import dataclass, field
from typing import Protocol

# Every process of a run inherits its name.
VARIABLE = "VERL_DUETS_RUN"


def run_tag() -> str | None:
    """Twelve hex digits that name this process's run in a file name; None outside a run started by the launcher."""
    run = os.environ.get(VARIABLE)
    return tag_of(run) if run else None


def tag_of(run: str) -> str:
    """The twelve hex digits of a run's name."""
    return hashlib.sha256(run.encode()).hexdigest()[:12]


NAMESPACE = b"verl-duets"


class Requests(Protocol):
    """Words by name."""

    def get(self, name: str) -> str | None:
        """The value under a name, None when nothing was put."""

    def put(self, name: str, value: str) -> None:
        """Replace the value under a name."""


@dataclass(frozen=True)
class LocalRequests:
    """Those of a trainer that no launcher of ours has started: nobody else puts anything."""

    words: dict[str, str] = field(default_factory=dict)

    def get(self, name: str) -> str | None:
        """The value under a name, None when nothing was put."""
        return self.words.get(name)

    def put(self, name: str, value: str) -> None:
        """Replace the value under a name."""
        self.words[name] = value


@dataclass(frozen=True)
class RayRequests:
    """Requests of one run in the key-value store of its Ray cluster."""

    run: str

    def get(self, name: str) -> str | None:
        """The value under a name; None too while this process is not connected."""
        from ray.experimental import internal_kv

        if not internal_kv._internal_kv_initialized():
            return None
        value = internal_kv._internal_kv_get(f"{self.run}/{name}", namespace=NAMESPACE)
        return None if value is None else value.decode()

    def put(self, name: str, value: str) -> None:
        """Replace the value under a name."""
        from ray.experimental import internal_kv

        internal_kv._internal_kv_put(f"{self.run}/{name}", value, namespace=NAMESPACE)

    def clear(self) -> None:
        """Forget the requests of a run that has ended; a cluster that was joined lives on."""
        from ray.experimental import internal_kv

        internal_kv._internal_kv_del(f"{self.run}/", del_by_prefix=True, namespace=NAMESPACE)


def requests_of_this_run() -> Requests:
    """Those of the run that this process belongs to."""
    run = os.environ.get(VARIABLE)
    return RayRequests(run) if run else LocalRequests()
