"""The trainers ``pasodoble_online`` and ``pasodoble_offline``: the Solver is the trainer, with a Proposer beside it."""

import json
import uuid
from abc import abstractmethod
from collections import defaultdict
from pathlib import Path

import ray
from omegaconf import DictConfig, open_dict
from verl.utils.debug import marked_timer

from recipes.core.data_plane import TRAIN, KVBatchMeta
from recipes.launch.resume import cut_back
from recipes.pasodoble.knowledge import KnowledgeBase
from recipes.pasodoble.prompts import require_chat_template
from recipes.pasodoble.roles import ProposerTrainer, RoleWorker, require_matching_ranks
from recipes.pasodoble.rounds import OfflineIteration, ScoredRound, pass_rate, problems, round_metrics, within_band
from recipes.pasodoble.settings import GameSettings
from recipes.pasodoble.state import GameState
from recipes.pasodoble.two_players import TwoPlayerTrainer


class PasoDobleTrainer(TwoPlayerTrainer):
    """What both variants share: set-up, the frame of a step, checkpoints, metrics."""

    def __init__(self, config):
        self.settings = GameSettings.from_config(config.pasodoble)
        super().__init__(config)
        _follow_platform(config.proposer, config)
        self.proposer = ProposerTrainer(config.proposer, self)
        self.mini_batch_size = self.settings.solver_mini_batch_size
        self.proposer.mini_batch_size = self.settings.proposer_mini_batch_size
        if self.settings.layout == "colocate":
            self.peer, self.proposer.peer = self.proposer, self
        self.base: KnowledgeBase | None = None
        self.state: GameState | None = None
        self._step_keys: list[str] = []
        self._learn_metrics: dict[str, list[float]] = {}
        self._rounds: list[ScoredRound] = []
        self._solver_rewards: list[float] = []

    def _init_resource_pool_mgr(self):
        super()._init_resource_pool_mgr()
        for role in self.role_worker_mapping:
            self.role_worker_mapping[role] = ray.remote(RoleWorker)

    def complete_setup(self):
        # the Solver is complete and its servers asleep before the Proposer asks for memory on the same devices
        require_matching_ranks(self.name, self.actor_rollout_wg, self.llm_server_manager)
        with open_dict(self.proposer.config):
            self.proposer.config.actor_rollout_ref.actor.optim.total_training_steps = self.total_training_steps
        self.proposer.init()
        for side in (self, self.proposer):
            require_chat_template(side.tokenizer)
        if self.settings.use_knowledge:
            self.base = KnowledgeBase.from_settings(self.settings.knowledge, self.proposer.tokenizer)
        self.state = GameState(self.settings.round, self.base.fingerprint() if self.base else None)

    def save_own_state(self, folder: Path) -> None:
        self.proposer.save(folder)
        self.state.save(folder)

    def load_own_state(self, folder: Path | None) -> None:
        if folder is not None:
            self.state.load(folder)
            self.proposer.load(folder)
        cut_back(self._problems_file(), self.global_steps)

    def on_train_begin(self):
        self._print_digests("start")
        super().on_train_begin()

    def on_init_end(self):
        pass

    def on_sample_end(self):
        pass

    def on_step_end(self):
        self.handle_requests()

    def select_trained(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        """Return the batch as it is: a round drops its own groups."""
        return batch

    def on_validate_begin(self):
        self.wake_rollout()

    def on_validate_end(self):
        self.sleep_rollout()

    def train_step(self, metrics: dict, timing_raw: dict) -> KVBatchMeta:
        """Make one global step of the variant and clear the queue of everything it made."""
        self.proposer.global_steps = self.global_steps
        self._learn_metrics, self._rounds, self._solver_rewards = defaultdict(list), [], []
        self.play(metrics, timing_raw)
        if self._rounds:
            metrics.update(round_metrics(self._rounds))
            self._log_problems()
        if self._solver_rewards:
            # verl's name for the mean reward of a step's responses, of whatever trainer
            metrics["critic/score/mean"] = sum(self._solver_rewards) / len(self._solver_rewards)
        metrics.update({key: sum(values) / len(values) for key, values in self._learn_metrics.items()})
        metrics |= {f"game/updates/{name}": float(count) for name, count in self.state.updates.items()}
        metrics |= {
            "game/history_size": float(len(self.state.history)),
            "game/buffer_size": float(len(self.state.buffer)),
        }
        self._print_digests(f"step {self.global_steps}")
        # verl clears what it is given here; the tags are for its metrics, which are replaced below
        last, self._step_keys = list(dict.fromkeys(self._step_keys)), []
        return KVBatchMeta(partition_id=TRAIN, keys=last, tags=[{} for _ in last])

    @abstractmethod
    def play(self, metrics: dict, timing_raw: dict) -> None:
        """Generate and learn; ``metrics`` and ``timing_raw`` are the step's."""

    def measure_step(self, batch, metrics, timing_raw, global_steps, epoch):
        metrics |= {"training/global_step": global_steps, "training/epoch": epoch}
        metrics |= {f"timing_s/{key}": value for key, value in timing_raw.items()}

    def _log_problems(self) -> None:
        every = self.settings.log_problems_every
        if every and self.global_steps % every == 0:
            path = self._problems_file()
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8", errors="replace") as file:
                for entry in problems(self._rounds, self.global_steps):
                    file.write(json.dumps(entry, ensure_ascii=False) + "\n")

    def _problems_file(self) -> Path:
        return Path(self.config.trainer.default_local_dir) / "problems.jsonl"

    def _print_digests(self, when: str) -> None:
        if self.settings.log_digests:
            digests = {side.name: side.actor_rollout_wg.parameter_digest()[0] for side in (self, self.proposer)}
            print(f"parameter digests, {when}: {json.dumps(digests)}", flush=True)


class OnlineTrainer(PasoDobleTrainer):
    """Each step plays a round and updates the Proposer, then the Solver; a skipped round is a step without update."""

    def play(self, metrics: dict, timing_raw: dict) -> None:
        proposals, answers, rounds, scored = self.play_rounds(timing_raw)
        self.learn_proposer(proposals, rounds, scored, timing_raw)
        learnt = {r.solver_uids[i] for r, s in zip(rounds, scored, strict=True) for i in s.solver_indices}
        self.learn_solver(answers, learnt, timing_raw)


class OfflineTrainer(PasoDobleTrainer):
    """Each step is an iteration: Proposer updates that fill the question buffer, then Solver updates from it."""

    def play(self, metrics: dict, timing_raw: dict) -> None:
        iteration = OfflineIteration(self.settings.offline)
        while phase := iteration.phase(len(self.state.buffer)):
            updated = self._proposer_try(timing_raw) if phase == "proposer" else self._solver_try(metrics, timing_raw)
            iteration.record(phase, updated=updated)
            following = iteration.phase(len(self.state.buffer))
            if following:
                self.forget_round()
            if following != phase:
                self._print_digests(f"step {self.global_steps}, {phase} phase")
        for name, tries in iteration.tries.items():
            metrics[f"game/tries/{name}"] = float(tries)
            metrics[f"game/out_of_tries/{name}"] = float(name in iteration.exhausted())

    def _proposer_try(self, timing_raw: dict) -> bool:
        proposals, _, rounds, scored = self.play_rounds(timing_raw)
        for r, s in zip(rounds, scored, strict=True):
            for i in s.solver_indices:
                rate = s.raw_pass_rates[i] if self.settings.round.filter_by == "raw" else s.pass_rates[i]
                self.state.buffer.append(r.proposals[i].question, r.proposals[i].answer, rate)
        return self.learn_proposer(proposals, rounds, scored, timing_raw)

    def _solver_try(self, metrics: dict, timing_raw: dict) -> bool:
        questions = self.state.buffer.draw(self.settings.offline.questions_per_update)
        uids = [uuid.uuid4().hex for _ in questions]
        with marked_timer("solve", timing_raw):
            answers = self._solve(uids, [q.question for q in questions], [q.answer for q in questions])
        rates = {uid: pass_rate(answers.verdicts(uid)) for uid in uids}
        graded = [rate for rate in rates.values() if rate is not None]
        metrics["game/buffer_pass_rate"] = sum(graded) / len(graded) if graded else 0.0
        learnt = {uid for uid, rate in rates.items() if within_band(rate, self.settings.round)}
        return self.learn_solver(answers, learnt, timing_raw)


def _follow_platform(proposer: DictConfig, solver: DictConfig) -> None:
    """Copy what the launcher found out about the machine into the Proposer's configuration."""
    with open_dict(proposer):
        proposer.trainer.device = solver.trainer.device
        solvers = solver.actor_rollout_ref.model.get("override_config") or {}
        own = proposer.actor_rollout_ref.model.get("override_config") or {}
        proposer.actor_rollout_ref.model.override_config = {**solvers, **own}
