"""Two policies write into one TransferQueue partition: each side takes only what it asked for."""

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

POLL_SECONDS = 0.05


class SideReplayBuffer(ReplayBuffer):
    """verl's buffer, restricted in training to the prompt groups named by ``own_uids``."""

    def __init__(self, **kwargs):
        kwargs.setdefault("poll_interval", POLL_SECONDS)
        super().__init__(**kwargs)
        self.own_uids: set[str] = set()

    def _sampleable_terminal_keys(self, partition_id, eviction_reasons):
        keys = super()._sampleable_terminal_keys(partition_id, eviction_reasons)
        return keys & self.own_uids if partition_id == "train" else keys
