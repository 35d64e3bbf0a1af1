"""Two sides in one job keep apart: replica ranks, prompt groups, sleeping rollouts, batch arithmetic."""

import asyncio
from types import SimpleNamespace

import pytest
import torch

from recipes.core import data_plane
from recipes.pasodoble.roles import (
    RoleTrainer,
    object_column,
    offset_replica_class,
    require_matching_ranks,
)
from recipes.pasodoble.two_players import TwoPlayerTrainer
from recipes.pasodoble.verl_plugin import RoleReplayBuffer


class Replica:
    """As much of verl's replica as the offset touches."""

    world_size = 2

    def __init__(self, replica_rank):
        self.replica_rank = replica_rank
        self.launched = 0

    async def launch_servers(self):
        self.launched += 1


@pytest.mark.parametrize("rank, workers", [(3, ["a", "b"]), (4, ["c", "d"])])
def test_a_moved_replica_still_takes_its_own_workers(rank, workers):
    replica = offset_replica_class(Replica, offset=3)(rank)
    asyncio.run(replica.init_hybrid(SimpleNamespace(workers=["a", "b", "c", "d"])))
    assert replica.workers == workers and replica.replica_rank == rank and replica.launched == 1


def test_ranks_that_do_not_match_are_refused():
    servers = SimpleNamespace(get_replicas=lambda: [Replica(1), Replica(2)])
    require_matching_ranks("proposer", SimpleNamespace(replica_rank=lambda: [1, 1, 2, 2]), servers)
    with pytest.raises(RuntimeError, match="the proposer's workers send weights to replicas {0, 1}"):
        require_matching_ranks("proposer", SimpleNamespace(replica_rank=lambda: [0, 1]), servers)


def test_the_buffer_samples_own_prompts_in_training_and_all_in_validation():
    buffer = RoleReplayBuffer.__new__(RoleReplayBuffer)
    both = {"train": {"mine", "other"}, "val": {"v"}}
    buffer.finished_keys, buffer.failure_keys = both, {"train": set(), "val": set()}
    buffer.own_uids = {"mine", "later"}
    nothing = (set(), set(), set(), None)
    assert buffer._sampleable_terminal_keys("train", nothing) == {"mine"}
    assert buffer._sampleable_terminal_keys("val", nothing) == {"v"}


class Rollout(RoleTrainer):
    """A side whose weight transfers are counted."""

    def __init__(self, name, free_cache_engine):
        self.name, self.global_steps, self.syncs = name, 3, []
        rollout = SimpleNamespace(free_cache_engine=free_cache_engine)
        self.config = SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=rollout))
        self.checkpoint_manager = SimpleNamespace(update_weights=self.syncs.append, sleep_replicas=lambda: None)


@pytest.mark.parametrize("discards, syncs", [(True, 2), (False, 1)])
def test_weights_are_sent_when_they_changed_or_were_discarded(discards, syncs):
    side = Rollout("solver", discards)
    for _ in range(2):
        side.wake_rollout()
        side.sleep_rollout()
    assert side.syncs == [2] * syncs
    side.rollout_stale = True
    side.wake_rollout()
    assert len(side.syncs) == syncs + 1


def test_only_one_of_two_peers_may_be_awake():
    solver, proposer = Rollout("solver", True), Rollout("proposer", True)
    solver.peer, proposer.peer = proposer, solver
    solver.wake_rollout()
    with pytest.raises(RuntimeError, match="the proposer's rollout cannot wake while the solver's is awake"):
        proposer.wake_rollout()
    solver.sleep_rollout()
    proposer.wake_rollout()


@pytest.mark.parametrize("mini_batch, expected", [(None, 4), (2, 4), (6, 12)])
def test_batches_are_padded_to_ranks_and_mini_batches(mini_batch, expected):
    side = Rollout("solver", True)
    side.mini_batch_size = mini_batch
    assert side._get_required_batch_multiple(4) == expected


def test_columns_hold_objects():
    column = object_column([[1, 2], [3, 4]])
    assert column.shape == (2,) and column[0] == [1, 2]


def test_marks_of_thinking_that_a_user_made_special_reach_the_parser(monkeypatch):
    tokenizer = SimpleNamespace(
        all_special_ids=[0, 1, 2], all_special_tokens=["<unk>", "</think>", "<eos>"],
        decode=lambda ids: " ".join(["<unk>", "</think>", "<eos>", "P"][token] for token in ids),
    )  # fmt: skip
    monkeypatch.setattr(data_plane, "read", lambda *_: {"responses": [torch.tensor([1, 3, 0, 2])]})
    assert RoleTrainer.texts(SimpleNamespace(tokenizer=tokenizer), None) == ["</think> P"]


def test_a_question_that_spells_a_control_token_is_none():
    tokenizer = lambda text, **_: {"input_ids": [7 if word == "<eos>" else 9 for word in text.split()]}  # noqa: E731
    tokenizer.all_special_ids = [7]
    settings = SimpleNamespace(parser="default")
    # To the Proposer it is a word; the question stands in the Solver's prompt.
    own = lambda text, **_: {"input_ids": [9 for _ in text.split()]}  # noqa: E731
    own.all_special_ids = []
    side = SimpleNamespace(tokenizer=tokenizer, proposer=SimpleNamespace(tokenizer=own), settings=settings)
    text = "</think> <problem>Why {}?</problem> <answer>\\boxed{{1}}</answer>"
    assert TwoPlayerTrainer._parse(side, text.format("not")).question == "Why not?"
    assert TwoPlayerTrainer._parse(side, text.format("<eos> not")).question == ""
