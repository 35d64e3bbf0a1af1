"""The order of play: who learns from which trajectories, with generating and learning recorded instead of done."""

from types import SimpleNamespace

import pytest
from transfer_queue import KVBatchMeta

from recipes.pasodoble.rounds import Proposal
from recipes.pasodoble.settings import GameSettings, OfflineSettings
from recipes.pasodoble.state import GameState
from recipes.pasodoble.trainer import OfflineTrainer, OnlineTrainer
from recipes.pasodoble.two_players import Answers, Round


class Recorded:
    """In place of engines: proposals solved as often as a script says, and a list of what was learnt."""

    def __init__(self, script, settings=None):
        self.settings = settings or GameSettings(log_problems_every=0)
        self.state = GameState(self.settings.round, None)
        self.script = iter(script)
        self.global_steps = 1
        self.proposer = SimpleNamespace(name="proposer", global_steps=0, set_rewards=self._note_rewards)
        self.learnt, self.cleared, self.rewards, self.asked, self.golds = [], [], {}, [], []
        self.round_number = 0
        self._step_keys = []

    def _propose(self):
        rounds = []
        for _ in range(self.settings.rounds_per_step):
            counts = next(self.script)
            base, self.round_number = self.round_number, self.round_number + 1
            proposals = [Proposal(f"problem {base}.{i}", f"gold {c}", (base, i)) for i, c in enumerate(counts)]
            rounds.append(Round([f"p{base}_{i}_0" for i in range(len(counts))], proposals, {}))
        keys = [key for r in rounds for key in r.proposal_keys]
        return KVBatchMeta(partition_id="train", keys=keys, tags=[{"response_len": 3} for _ in keys]), rounds

    def _solve(self, uids, questions, golds):
        self.asked += questions
        self.golds += golds
        keys = [f"{uid}_{j}_0" for uid in uids for j in range(6)]
        rewards = {}
        for uid, gold in zip(uids, golds, strict=True):
            correct = int(gold.split()[1])
            rewards[uid] = [1.0] * correct + [0.0] * (6 - correct)
        batch = KVBatchMeta(partition_id="train", keys=keys, tags=[{"response_len": 3} for _ in keys])
        return Answers(batch, rewards)

    def _learn(self, side, batch, timing_raw):
        self.learnt.append((side.name, list(batch.keys)))
        self.state.updates[side.name] += 1

    def _note_rewards(self, batch, rewards):
        self.rewards |= dict(zip(batch.keys, rewards, strict=True))

    def forget_round(self):
        self.cleared.append(len(self.learnt))

    def _print_digests(self, when):
        pass


class Online(Recorded, OnlineTrainer):
    pass


class Offline(Recorded, OfflineTrainer):
    pass


def roles(trainer):
    return [name for name, _ in trainer.learnt]


def test_online_updates_the_proposer_then_the_solver():
    trainer = Online([[0, 3, 6]])
    metrics = {}
    trainer.step(metrics, {})
    assert roles(trainer) == ["proposer", "solver"]
    assert trainer.learnt[0][1] == ["p0_0_0", "p0_1_0", "p0_2_0"]
    assert trainer.rewards == pytest.approx({"p0_0_0": 0.0, "p0_1_0": 0.8, "p0_2_0": 0.3})
    assert len(trainer.learnt[1][1]) == 6
    assert metrics["game/skipped"] == 0 and metrics["game/updates/solver"] == 1


@pytest.mark.parametrize("counts", [[0, 0, 1], [6, 6, 6], [0, 0, 6], [3, 3, 3]])
def test_a_skipped_round_updates_nobody(counts):
    trainer = Online([counts])
    metrics = {}
    trainer.step(metrics, {})
    assert trainer.learnt == []
    assert metrics["game/skipped"] == 1 and metrics["game/updates/proposer"] == 0


def test_rounds_of_one_step_share_the_updates_and_skipped_ones_stay_out():
    trainer = Online([[0, 3], [6, 6], [2, 5]], GameSettings(rounds_per_step=3, log_problems_every=0))
    trainer.step({}, {})
    assert roles(trainer) == ["proposer", "solver"]
    assert trainer.learnt[0][1] == ["p0_0_0", "p0_1_0", "p2_0_0", "p2_1_0"]
    assert len(trainer.learnt[1][1]) == 3 * 6


@pytest.mark.parametrize("frozen, left", [("train_proposer", ["solver"]), ("train_solver", ["proposer"])])
def test_a_frozen_role_is_not_updated(frozen, left):
    trainer = Online([[0, 3]], GameSettings(log_problems_every=0, **{frozen: False}))
    trainer.step({}, {})
    assert roles(trainer) == left


def test_offline_updates_the_proposer_ten_times_and_the_solver_five_times():
    trainer = Offline([[0, 3, 4]] * 10)
    metrics = {}
    trainer.step(metrics, {})
    assert roles(trainer) == ["proposer"] * 10 + ["solver"] * 5
    assert metrics["game/buffer_size"] == 20 and metrics["game/history_size"] == 30
    assert trainer.state.buffer.cursor == 30 % 20
    assert trainer.asked[-6:] == [f"problem {i // 2}.{1 + i % 2}" for i in (4, 5, 6, 7, 8, 9)]


def test_offline_ends_when_nothing_can_be_learnt():
    settings = GameSettings(log_problems_every=0, offline=OfflineSettings(proposer_updates=2, solver_updates=2))
    trainer = Offline([[0, 0]] * 100, settings)
    metrics = {}
    trainer.step(metrics, {})
    assert trainer.learnt == []
    assert metrics["game/tries/proposer"] == 40 and metrics["game/tries/solver"] == 0
    assert metrics["game/out_of_tries/proposer"] == 1


def test_offline_clears_the_queue_between_tries():
    trainer = Offline([[0, 3]] * 10)
    trainer.step({}, {})
    assert len(trainer.cleared) == 14


def test_the_solver_learns_the_proposers_answer_out_of_the_buffer():
    settings = GameSettings(
        log_problems_every=0,
        offline=OfflineSettings(proposer_updates=1, solver_updates=1, questions_per_update=2),
    )
    trainer = Offline([[0, 3, 4]], settings)
    trainer.step({}, {})
    assert trainer.golds == ["gold 0", "gold 3", "gold 4", "gold 3", "gold 4"]
