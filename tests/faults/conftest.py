"""The real runs of the end-to-end tests, here made to fail."""

import importlib.util
import signal
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

_spec = importlib.util.spec_from_file_location("end_to_end_runs", Path(__file__).parents[1] / "end_to_end/conftest.py")
end_to_end = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(end_to_end)

small, world, toy_world, start = end_to_end.small, end_to_end.world, end_to_end.toy_world, end_to_end.start


@pytest.fixture(autouse=True)
def interruptible():
    """A suite in the background of a script ignores SIGINT, and so would the processes that it starts."""
    before = signal.getsignal(signal.SIGINT)
    if before == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
