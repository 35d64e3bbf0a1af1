"""One round of the game on verl, and one update of each policy.

Source: PasoDoble, ``pasodoble_online.py`` and ``pasodoble_offline.py``; what a round means stands in ``rounds.py``.
Weights go to a rollout right before it generates, and only if they changed, so a frozen or skipped policy costs
nothing and a round never sees stale weights.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from verl.utils.debug import marked_timer

from recipes.core import data_plane
from recipes.core.data_plane import TRAIN, KVBatchMeta, session_of, uid_of
from recipes.core.trainer import DuetTrainer
from recipes.pasodoble.knowledge import KnowledgeBase
from recipes.pasodoble.parsing import extract_answer, extract_question
from recipes.pasodoble.prompts import Messages, spells_control_token
from recipes.pasodoble.roles import ProposerTrainer, RoleTrainer
from recipes.pasodoble.rounds import Proposal, ScoredRound, Verdicts, questions_to_ask, score_rounds
from recipes.pasodoble.settings import GameSettings
from recipes.pasodoble.state import GameState
from reward_fns.result import Score, from_verl


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
        """Return the rewards on a question; empty if it was not asked, None if no response could be graded."""
        return [] if uid is None else self.rewards.get(uid) or None


class TwoPlayerTrainer(RoleTrainer, DuetTrainer):
    """The Solver's trainer as far as it plays: rounds with the Proposer beside it, and the updates that follow them."""

    name = "solver"
    settings: GameSettings
    proposer: ProposerTrainer
    base: KnowledgeBase | None
    state: GameState
    _step_keys: list[str]
    _learn_metrics: dict[str, list[float]]
    _rounds: list[ScoredRound]
    _solver_rewards: list[float]

    def play_rounds(self, timing_raw: dict) -> tuple[KVBatchMeta, Answers, list[Round], list[ScoredRound]]:
        """Generate ``rounds_per_step`` rounds and score them in index order."""
        with marked_timer("propose", timing_raw):
            proposals, rounds = self._propose()
        places = [(r, i) for r in rounds for i in questions_to_ask(r.proposals, self.settings.round)]
        for r, i in places:
            r.solver_uids[i] = uuid.uuid4().hex
        with marked_timer("solve", timing_raw):
            answers = self._solve(
                [r.solver_uids[i] for r, i in places],
                [r.proposals[i].question for r, i in places],
                [r.proposals[i].answer for r, i in places],
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
            chosen = data_plane.select(batch, rewards.keys())
            self.proposer.set_rewards(chosen, [rewards[key] for key in chosen.keys])
            self._learn(self.proposer, chosen, timing_raw)
        return True

    def learn_solver(self, answers: Answers, uids: set[str], timing_raw: dict) -> bool:
        """Update the Solver on all graded responses to these questions; False if there are none."""
        if answers.batch is None or not uids:
            return False
        if self.settings.train_solver:
            self._learn(self, data_plane.select(answers.batch, lambda key: uid_of(key) in uids), timing_raw)
        return True

    def _learn(self, side: RoleTrainer, batch: KVBatchMeta, timing_raw: dict) -> None:
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
            for index in self.state.draw_documents(self.settings.rounds_per_step)
        ]
        uids = [uuid.uuid4().hex for _ in prompts]
        batch = self.proposer.generate(self._rows(uids, prompts, "pasodoble_proposer"))
        self._step_keys += batch.keys
        texts = dict(zip(batch.keys, self.proposer.texts(batch), strict=True))
        # sessions finish in any order; the order inside a round must not depend on that
        keys = {uid: sorted((k for k in batch.keys if uid_of(k) == uid), key=session_of) for uid in uids}
        return batch, [Round(keys[uid], [self._parse(texts[key]) for key in keys[uid]], {}) for uid in uids]

    def _parse(self, text: str) -> Proposal:
        question = extract_question(text)
        if spells_control_token(self.tokenizer, question):
            question = ""
        ids = self.proposer.tokenizer(question, add_special_tokens=False)["input_ids"]
        return Proposal(question, extract_answer(text, self.settings.parser), tuple(ids))

    def _solve(self, uids: list[str], questions: list[str], golds: list[str]) -> Answers:
        if not uids:
            return Answers(None, {})
        prompts = [self.settings.prompts.for_solver(q, request_box=self.settings.request_box) for q in questions]
        rows = self._rows(uids, prompts, "pasodoble_solver")
        rows["reward_model"] = [{"style": "rule", "ground_truth": gold} for gold in golds]
        batch = self.generate(rows)
        self._step_keys += batch.keys
        extras = data_plane.read(batch, "extra_fields")["extra_fields"]
        results = {key: from_verl(extra["reward_extra_info"]) for key, extra in zip(batch.keys, extras, strict=True)}
        self.budget.require(results.values())
        self._solver_rewards += [result.value for result in results.values() if isinstance(result, Score)]
        rewards: dict[str, list[float]] = {}
        for key, result in results.items():
            if isinstance(result, Score):
                rewards.setdefault(uid_of(key), []).append(result.value)
        return Answers(data_plane.select(batch, lambda key: isinstance(results[key], Score)), rewards)

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
        data_plane.clear(TRAIN, self._step_keys)
        self._step_keys = []
