"""The trainers ``pasodoble_online`` and ``pasodoble_offline``: the Solver is the trainer, and it has a Proposer side.

Source: PasoDoble, ``pasodoble_online.py`` and ``pasodoble_offline.py``. What a round means stands in ``rounds.py``;
here it is generated and learnt from. Weights go to a rollout right before it generates, and only if they changed, so a
frozen or skipped policy costs nothing and a round never sees stale weights.
"""

import json
import os
import uuid
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import ray
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf, open_dict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1 import PPOTrainerSync
from verl.utils.debug import marked_timer

from recipes.pasodoble.knowledge import KnowledgeBase
from recipes.pasodoble.parsing import extract_answer, extract_question
from recipes.pasodoble.prompts import Messages, require_chat_template
from recipes.pasodoble.proposer_side import ProposerSide
from recipes.pasodoble.round_metrics import problems, round_metrics
from recipes.pasodoble.rounds import (
    OfflineIteration,
    Proposal,
    ScoredRound,
    Verdicts,
    pass_rate,
    questions_to_ask,
    score_rounds,
    within_band,
)
from recipes.pasodoble.settings import GameSettings
from recipes.pasodoble.side import PARTITION, Side, SideWorker, clear, require_matching_ranks, subset, uid_of
from recipes.pasodoble.state import GameState
from reward_fns.result import FailureBudget, Score, from_verl

MIN_UNGRADED = 16


@dataclass
class Round:
    """A generated round: its proposals' trajectories and, for those that were asked, the Solver's prompt group."""

    proposal_keys: list[str]
    proposals: list[Proposal]
    solver_uids: dict[int, str]


@dataclass
class Answers:
    """The Solver's trajectories, and its rewards by prompt group; ungraded responses are in neither."""

    batch: KVBatchMeta | None
    rewards: dict[str, list[float]]

    def verdicts(self, uid: str | None) -> Verdicts:
        """Rewards on a question; empty if it was not asked, None if no response could be graded."""
        return [] if uid is None else self.rewards.get(uid) or None


class PasoDobleTrainer(Side, PPOTrainerSync):
    """What both variants share: set-up, one round, one update of each policy, checkpoints, metrics."""

    name = "solver"

    def __init__(self, config):
        self.settings = GameSettings.from_config(OmegaConf.to_container(config.pasodoble, resolve=True))
        super().__init__(config)
        _follow_platform(config.proposer, config)
        self.proposer = ProposerSide(config.proposer, self)
        self.mini_batch_size = self.settings.solver_mini_batch_size
        self.proposer.mini_batch_size = self.settings.proposer_mini_batch_size
        if self.settings.layout == "colocate":
            self.housemate, self.proposer.housemate = self.proposer, self
        self.base: KnowledgeBase | None = None
        self.state: GameState | None = None
        self._step_keys: list[str] = []
        self._learn_metrics: dict[str, list[float]] = {}
        self._rounds: list[ScoredRound] = []
        self._solver_rewards: list[float] = []

    def _init_resource_pool_mgr(self):
        super()._init_resource_pool_mgr()
        for role in self.role_worker_mapping:
            self.role_worker_mapping[role] = ray.remote(SideWorker)

    def _setup(self):
        # the Solver is complete and its servers asleep before the Proposer asks for memory on the same devices
        super()._setup()
        require_matching_ranks(self.name, self.actor_rollout_wg, self.llm_server_manager)
        with open_dict(self.proposer.config):
            self.proposer.config.actor_rollout_ref.actor.optim.total_training_steps = self.total_training_steps
        self.proposer.init()
        for side in (self, self.proposer):
            require_chat_template(side.tokenizer)
        if self.settings.use_knowledge:
            self.base = KnowledgeBase.from_settings(self.settings.knowledge, self.proposer.tokenizer)
        self.state = GameState(self.settings.round, self.base.fingerprint() if self.base else None)
        if self.global_steps > 0:
            folder = self._checkpoint_folder()
            self.state.load(folder)
            self.proposer.load(folder)
        self._print_digests("start")

    def on_init_end(self):
        pass

    def on_sample_end(self):
        pass

    def on_step_end(self):
        pass

    def on_validate_begin(self):
        self.wake_rollout()

    def on_validate_end(self):
        self.sleep_rollout()

    def step(self, metrics: dict, timing_raw: dict) -> KVBatchMeta:
        """One global step of the variant. The queue is cleared of everything it made."""
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
        return KVBatchMeta(partition_id=PARTITION, keys=last, tags=[{} for _ in last])

    def play(self, metrics: dict, timing_raw: dict) -> None:
        """Generate and learn; ``metrics`` and ``timing_raw`` are the step's."""
        raise NotImplementedError

    def play_rounds(self, timing_raw: dict) -> tuple[KVBatchMeta, Answers, list[Round], list[ScoredRound]]:
        """Generate ``rounds_per_step`` rounds and score them in index order."""
        with marked_timer("propose", timing_raw):
            proposals, rounds = self._propose()
        asked = [(r, i) for r in rounds for i in questions_to_ask(r.proposals, self.settings.round)]
        for r, i in asked:
            r.solver_uids[i] = uuid.uuid4().hex
        with marked_timer("solve", timing_raw):
            answers = self._solve(
                [r.solver_uids[i] for r, i in asked],
                [r.proposals[i].question for r, i in asked],
                [r.proposals[i].answer for r, i in asked],
            )
        verdicts = [[answers.verdicts(r.solver_uids.get(i)) for i in range(len(r.proposals))] for r in rounds]
        scored = score_rounds(
            zip([r.proposals for r in rounds], verdicts, strict=True), self.state.history, self.settings.round
        )
        self._rounds += scored
        return proposals, answers, rounds, scored

    def learn_proposer(
        self, batch: KVBatchMeta, rounds: Sequence[Round], scored: Sequence[ScoredRound], timing_raw: dict
    ) -> bool:
        """Update the Proposer on the graded proposals of the rounds that were not skipped; False if there are none."""
        rewards = {
            r.proposal_keys[i]: s.rewards[i] for r, s in zip(rounds, scored, strict=True) for i in s.proposer_indices
        }
        if not rewards:
            return False
        if self.settings.train_proposer:
            chosen = subset(batch, rewards.__contains__)
            self.proposer.set_rewards(chosen, [rewards[key] for key in chosen.keys])
            self._learn(self.proposer, chosen, timing_raw)
        return True

    def learn_solver(self, answers: Answers, uids: set[str], timing_raw: dict) -> bool:
        """Update the Solver on all graded responses to these questions; False if there are none."""
        if answers.batch is None or not uids:
            return False
        if self.settings.train_solver:
            self._learn(self, subset(answers.batch, lambda key: uid_of(key) in uids), timing_raw)
        return True

    def _learn(self, side: Side, batch: KVBatchMeta, timing_raw: dict) -> None:
        lengths = [tag["response_len"] for tag in batch.tags]
        limit = side.config.actor_rollout_ref.rollout.response_length
        with marked_timer(f"learn_{side.name}", timing_raw):
            padded, metrics = side.learn(batch)
        self._step_keys += padded.keys
        self.state.updates[side.name] += 1
        metrics |= {
            "batch_size": len(lengths),
            "response_length/mean": sum(lengths) / len(lengths),
            "response_length/max": max(lengths),
            "response_length/clip_ratio": sum(length >= limit for length in lengths) / len(lengths),
        }
        for key, value in metrics.items():
            self._learn_metrics[f"{side.name}/{key}"].append(float(value))

    def _propose(self) -> tuple[KVBatchMeta, list[Round]]:
        prompts = [
            self.settings.prompts.for_proposer(self.base.draw(index) if self.base else None)
            for index in self.state.take_documents(self.settings.rounds_per_step)
        ]
        uids = [uuid.uuid4().hex for _ in prompts]
        batch = self.proposer.generate(self._rows(uids, prompts, "pasodoble_proposer"))
        self._step_keys += batch.keys
        texts = dict(zip(batch.keys, self.proposer.texts(batch), strict=True))
        # sessions finish in any order; the order inside a round must not depend on that
        keys = {uid: sorted((k for k in batch.keys if uid_of(k) == uid), key=_session) for uid in uids}
        return batch, [Round(keys[uid], [self._parse(texts[key]) for key in keys[uid]], {}) for uid in uids]

    def _parse(self, text: str) -> Proposal:
        question = extract_question(text)
        ids = self.proposer.tokenizer(question, add_special_tokens=False)["input_ids"]
        return Proposal(question, extract_answer(text), tuple(ids))

    def _solve(self, uids: list[str], questions: list[str], golds: list[str]) -> Answers:
        if not uids:
            return Answers(None, {})
        prompts = [self.settings.prompts.for_solver(q, request_box=self.settings.request_box) for q in questions]
        rows = self._rows(uids, prompts, "pasodoble_solver")
        rows["reward_model"] = [{"style": "rule", "ground_truth": gold} for gold in golds]
        batch = self.generate(rows)
        self._step_keys += batch.keys
        data = tq.kv_batch_get(keys=batch.keys, partition_id=PARTITION, select_fields=["extra_fields"])
        results = {
            # the queue may wrap each row's mapping
            key: from_verl(getattr(extra, "data", extra)["reward_extra_info"])
            for key, extra in zip(batch.keys, list(data["extra_fields"]), strict=True)
        }
        FailureBudget(self.settings.max_ungraded_share, MIN_UNGRADED).require(results.values())
        self._solver_rewards += [result.value for result in results.values() if isinstance(result, Score)]
        rewards: dict[str, list[float]] = {}
        for key, result in results.items():
            if isinstance(result, Score):
                rewards.setdefault(uid_of(key), []).append(result.value)
        return Answers(subset(batch, lambda key: isinstance(results[key], Score)), rewards)

    def _rows(self, uids: list[str], prompts: list[Messages], source: str) -> dict[str, list]:
        return {
            "uid": uids,
            "raw_prompt": prompts,
            "index": list(range(len(uids))),
            "data_source": [source] * len(uids),
            "reward_model": [{"style": "rule", "ground_truth": ""} for _ in uids],
            "extra_info": [{} for _ in uids],
        }

    def forget_round(self) -> None:
        """Clear the queue of what a finished part of the step made."""
        clear(self._step_keys)
        self._step_keys = []

    def _compute_metrics(self, batch, metrics, timing_raw, global_steps, epoch):
        metrics |= {"training/global_step": global_steps, "training/epoch": epoch}
        metrics |= {f"timing_s/{key}": value for key, value in timing_raw.items()}

    def _log_problems(self) -> None:
        every = self.settings.log_problems_every
        if every and self.global_steps % every == 0:
            path = Path(self.config.trainer.default_local_dir) / "problems.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8", errors="replace") as file:
                for entry in problems(self._rounds, self.global_steps):
                    file.write(json.dumps(entry, ensure_ascii=False) + "\n")

    def _print_digests(self, when: str) -> None:
        if self.settings.log_digests:
            digests = {side.name: side.actor_rollout_wg.parameter_digest()[0] for side in (self, self.proposer)}
            print(f"parameter digests, {when}: {json.dumps(digests)}", flush=True)

    def _checkpoint_folder(self) -> str:
        if self.config.trainer.resume_mode == "resume_path":
            return self.config.trainer.resume_from_path
        return self._step_folder(self.global_steps)

    def _step_folder(self, step: int) -> str:
        return os.path.join(self.config.trainer.default_local_dir, f"global_step_{step}")

    def _save_checkpoint(self):
        folder = self._step_folder(self.global_steps)
        self.proposer.save(folder)
        self.state.save(folder)
        # verl's part comes last: it ends with the tracker file that makes the checkpoint count
        super()._save_checkpoint()


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
        questions = self.state.buffer.take(self.settings.offline.questions_per_update)
        uids = [uuid.uuid4().hex for _ in questions]
        with marked_timer("solve", timing_raw):
            answers = self._solve(uids, [q.question for q in questions], [q.answer for q in questions])
        rates = {uid: pass_rate(answers.verdicts(uid)) for uid in uids}
        graded = [rate for rate in rates.values() if rate is not None]
        metrics["game/buffer_pass_rate"] = sum(graded) / len(graded) if graded else 0.0
        learnt = {uid for uid, rate in rates.items() if within_band(rate, self.settings.round)}
        return self.learn_solver(answers, learnt, timing_raw)


def _follow_platform(proposer: DictConfig, solver: DictConfig) -> None:
    """What the launcher finds out about the machine after the Proposer's configuration was written out."""
    with open_dict(proposer):
        proposer.trainer.device = solver.trainer.device
        found = solver.actor_rollout_ref.model.get("override_config") or {}
        own = proposer.actor_rollout_ref.model.get("override_config") or {}
        proposer.actor_rollout_ref.model.override_config = {**found, **own}


def _session(key: str) -> tuple[int, int]:
    _, session, index = key.rsplit("_", 2)
    return int(session), int(index)
