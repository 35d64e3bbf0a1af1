"""A weight sync that reaches its own engine, and fails instead of waiting for ever for one that is gone.

verl's sender of weights blocks in ``socket.recv()`` until the engine acknowledges each bucket. When the engine has
died, or has raised while it loaded a bucket, nobody answers: the trainer hangs and the driver stays silent. Runs
started by :mod:`recipes.launch` give each acknowledgement a limit; other verl jobs keep upstream's behaviour.
"""

import functools
import os

from recipes.core.patching import patch_when_imported
from recipes.core.requests import run_tag
from recipes.errors import WeightSyncTimeout

VARIABLE = "VERL_DUETS_SYNC_TIMEOUT"
MODULE = "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer"
SENTINEL = "_verl_duets_sync_timeout"


def limit_seconds() -> float:
    """Seconds each acknowledgement may take, from the environment of the run."""
    value = os.environ.get(VARIABLE, "")
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if seconds <= 0:
        raise ValueError(f"{VARIABLE} must be a positive number of seconds, got {value!r}")
    return seconds


def bound_acknowledgements(module) -> None:
    """Let the sender raise :class:`WeightSyncTimeout` when an acknowledgement does not come within the limit."""
    import zmq

    sender = module.BucketedWeightSender
    if hasattr(sender, SENTINEL):
        return
    seconds = limit_seconds()
    bind, send = sender._init_socket, sender.async_send_weights

    @functools.wraps(bind)
    def _init_socket(self):
        bind(self)
        # A bound socket without a peer blocks in send, one whose peer is gone in recv.
        self.socket.setsockopt(zmq.SNDTIMEO, int(seconds * 1000))
        self.socket.setsockopt(zmq.RCVTIMEO, int(seconds * 1000))
        self.socket.setsockopt(zmq.LINGER, 0)

    @functools.wraps(send)
    async def async_send_weights(self, weights):
        try:
            await send(self, weights)
        except zmq.Again as error:
            raise WeightSyncTimeout(
                f"the rollout engine behind {self.zmq_handle} did not acknowledge new weights within {seconds:g} s: it "
                f"exited unexpectedly, or failed while loading them (its own error stands above, under the name of its "
                f"worker). Raise {VARIABLE} if the engine is only slow."
            ) from error

    sender._init_socket, sender.async_send_weights = _init_socket, async_send_weights
    for end in (sender, module.BucketedWeightReceiver):
        end.__init__ = _on_a_socket_of_this_run(end.__init__)
    setattr(sender, SENTINEL, True)


def socket_of_this_run(zmq_handle: str) -> str:
    """verl's socket path with the run's name in it.

    verl names the socket after the Ray job, and the first job of every cluster is 01000000: two runs on one host would
    share ``/tmp/rl-colocate-zmq-01000000-replica-0-rank-0.sock``, and one could load the other's weights.
    """
    tag = run_tag()
    if tag is None or not zmq_handle.endswith(".sock"):
        return zmq_handle
    return f"{zmq_handle.removesuffix('.sock')}-{tag}.sock"


def _on_a_socket_of_this_run(initialise):
    @functools.wraps(initialise)
    def __init__(self, zmq_handle, *args, **kwargs):
        initialise(self, socket_of_this_run(zmq_handle), *args, **kwargs)

    return __init__


def install() -> None:
    """Bound the acknowledgements of this process as soon as verl imports its sender."""
    patch_when_imported(MODULE, "recipes/core/weight_sync.py", bound_acknowledgements)
