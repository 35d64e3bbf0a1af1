r"""Majority vote over the responses to one prompt: each answer is read once, and only distinct answers are compared.

`convention="default"` reads an answer from each response by the rules of `reward_fns.extract` and compares by those of
`reward_fns.equivalence`. `convention="reference"` is the rule of SeRL (Fang et al. 2025,
reward_utils/math_verify_maj_reward.py): the pairwise matrix over the texts as given, the winner's row, the
earliest maximum.
"""

import math
import re
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from reward_fns.answer import normal_form, squeeze
from reward_fns.equivalence import NeedsAlgebra, compare, refuse_algebra
from reward_fns.errors import OptionError, SkipError
from reward_fns.extract import AnswerScope, bounded, extract_boxed, extract_phrase, is_placeholder, scoped
from reward_fns.gold import gold_problem, refuse_reading
from reward_fns.pool import Kind, Outcome, Pool, shared_pool
from reward_fns.result import Score, Skip
from reward_fns.shapes import is_chain, shape_of

MAX_BARE_CHARS = 200
REFERENCE_TIME_LIMIT = 120.0
MANY_ANSWERS = 12
"""From so many distinct answers on, pairs of formulas with different values are not compared."""
_LIMITS = (Kind.TIME_OUT, Kind.MEMORY, Kind.CRASH)
_PROSE = re.compile(r"[A-Za-z]{2,}\W+[A-Za-z]{2,}")


@dataclass(frozen=True)
class Vote:
    """The outcome of one vote over n responses.

    Attributes:
        rewards: n floats: 1.0 for a response with the winning answer, else 0.0. All 0.0 when nothing won.
        winner: index of the first response with the winning answer, or None when nothing won.
        agreement: size of the largest class divided by n; 0.0 for no answers.
        entropy: of the class sizes among the answered, in nats.
        n_classes: number of distinct answers.
        abstained: number of responses without a usable answer.
        answers: what was read from each response; "" for an abstention.
        reason: why nothing won: `no_answers`, `too_few` or `tie`; "" when something did.
        classes: number of each response's class of equal answers, in the order in which they appear; None for an
            abstention.
    """

    rewards: tuple[float, ...]
    winner: int | None
    agreement: float
    entropy: float
    n_classes: int
    abstained: int
    answers: tuple[str, ...] = ()
    reason: str = ""
    classes: tuple[int | None, ...] = ()

    @property
    def decided(self) -> bool:
        """Whether an answer won."""
        return self.winner is not None

    def results(self) -> list[Score | Skip]:
        """A Score for each response, or a Skip for each of them when nothing won: without a label there is no
        reward."""
        if not self.decided:
            return [Skip(f"vote_{self.reason}", answer) for answer in self.answers]
        return [
            Score(reward, "" if reward else ("minority" if answer else "abstained"), answer)
            for reward, answer in zip(self.rewards, self.answers, strict=True)
        ]


def majority_vote(
    responses: Sequence[Any],
    *,
    convention: Literal["default", "reference"] = "default",
    min_answers: int = 2,
    ties: Literal["undecided", "earliest"] = "undecided",
    answer_scope: AnswerScope = "final",
    time_limit: float = 5.0,
    pool: Pool | None = None,
) -> Vote:
    """Vote over the responses of one group, of any size.

    Default convention: an answer is the last closed box, else what follows "the answer is", else a response that is
    nothing but an answer; everything else abstains, and so does an answer that cannot be parsed or checked within the
    time limit. Equal answers are one class (see `group_equal`; the outcome does not depend on the order). The largest
    class wins; fewer than `min_answers` answers, or a tie for the largest, decide nothing.

    Args:
        responses: texts; anything but a string abstains.
        convention: `default` or `reference`. Under `reference` the texts are compared as given, whatever they hold, and
            `min_answers`, `ties` and `answer_scope` do not apply.
        min_answers: fewer answers than this decide nothing.
        ties: `undecided`, or `earliest`: the tied class with the earliest response wins.
        time_limit: seconds for a comparison of answers.
        pool: default: the shared pool of this process.

    Raises:
        OptionError: an unknown convention or rule for ties.
        SkipError: the pool failed, so the group cannot be judged; it is not the responses' fault.
    """
    if convention not in ("default", "reference") or ties not in ("undecided", "earliest"):
        raise OptionError(f"unknown convention or rule: {convention=} {ties=}")
    pool = pool or shared_pool()
    if convention == "reference":
        return _reference_vote(["" if not isinstance(r, str) else r for r in responses], pool)
    answers = [read_answer(response, answer_scope) for response in responses]
    keys = [squeeze(normal_form(answer)) for answer in answers]
    distinct = {key: answer for key, answer in zip(keys, answers, strict=True) if key}
    labels = _label_classes(distinct, Counter(keys), time_limit, pool)
    return _count([labels.get(key) for key in keys], answers, min_answers, ties)


def read_answer(response: Any, answer_scope: AnswerScope = "final") -> str:
    """The answer a response votes for, or "" for an abstention."""
    if not isinstance(response, str):
        return ""
    answer = extract_boxed(response, answer_scope)
    if answer.reason == "no_box":
        answer = extract_phrase(response, answer_scope)
        if answer.reason == "no_phrase":
            bare = scoped(response, answer_scope).strip()
            answer = bounded(bare if len(bare) <= MAX_BARE_CHARS and not _PROSE.search(bare) else "")
    if not answer.text or is_placeholder(answer.text):
        return ""
    is_refused = any(is_chain(item) for item in shape_of(normal_form(answer.text)).items)
    return "" if is_refused else answer.text


def _count(labels: list[str | None], answers: list[str], min_answers: int, ties: str) -> Vote:
    sizes = Counter(label for label in labels if label is not None)
    answered = sum(sizes.values())
    largest = max(sizes.values(), default=0)
    leaders = [label for label in dict.fromkeys(labels) if label is not None and sizes[label] == largest]
    if not answered:
        reason = "no_answers"
    elif answered < min_answers:
        reason = "too_few"
    else:
        reason = "tie" if len(leaders) > 1 and ties == "undecided" else ""
    won = leaders[0] if leaders and not reason else None
    numbers = {label: number for number, label in enumerate(sizes)}
    return Vote(
        rewards=tuple(float(won is not None and label == won) for label in labels),
        winner=None if won is None else labels.index(won),
        agreement=largest / len(labels) if labels else 0.0,
        entropy=-sum(size / answered * math.log(size / answered) for size in sizes.values()) + 0.0,
        n_classes=len(sizes),
        abstained=len(labels) - answered,
        answers=tuple(answer if label is not None else "" for answer, label in zip(answers, labels, strict=True)),
        reason=reason,
        classes=tuple(None if label is None else numbers[label] for label in labels),
    )


def group_equal(
    keys: Sequence[str], equal: Iterable[tuple[str, str]], votes: Mapping[str, int] | None = None
) -> dict[str, str]:
    """The classes that equality of pairs makes: in a class every two members are equal.

    Equality of answers need not be transitive: 5 is `5 cm` and `5 m`, with its unit left out. An answer that is equal
    to others which differ belongs with those of them that have most votes; where two have as many, it stands alone. So
    no class spans what pairs separate, and the classes do not depend on the order of keys or pairs.

    Args:
        votes: for each key; one where there is none.

    Returns:
        For each key the first key of its class.
    """
    count = votes or {}
    near: dict[str, set[str]] = {key: {key} for key in keys}
    for a, b in equal:
        near[a].add(b)
        near[b].add(a)
    while True:
        between = [key for key, others in near.items() if any(not others <= near[other] for other in others)]
        if not between:
            return {key: next(other for other in keys if other in near[key]) for key in keys}
        for key, chosen in {key: _heaviest_side(key, near, set(between), count) for key in between}.items():
            for other in near[key] - chosen - {key}:
                near[other].discard(key)
            near[key] &= chosen | {key}


def _heaviest_side(
    key: str, near: Mapping[str, set[str]], between: set[str], votes: Mapping[str, int]
) -> frozenset[str]:
    """Of the answers that a key is equal to, those that are equal to each other and have most votes; none at a tie."""
    sides = {frozenset(near[other] - between) & near[key] for other in near[key] - between}
    weights = sorted(((sum(votes.get(one, 1) for one in side), side) for side in sides), key=lambda pair: pair[0])
    if not weights or (len(weights) > 1 and weights[-1][0] == weights[-2][0]):
        return frozenset()
    return weights[-1][1]


def _label_classes(distinct: dict[str, str], votes: Mapping[str, int], time_limit: float, pool: Pool) -> dict[str, str]:
    """The class of each distinct answer; answers that cannot be used have none."""
    unsure = []
    sound: list[str] = []
    for key, answer in distinct.items():
        try:
            if not gold_problem(answer, refuse_reading):
                sound.append(key)
        except NeedsAlgebra:
            unsure.append(key)
    usable = sound + unsure
    values = _values(distinct, usable, time_limit, pool) if len(usable) > MANY_ANSWERS else {}
    equal: list[tuple[str, str]] = []
    open_pairs: list[tuple[str, str]] = []
    for position, a in enumerate(usable):
        for b in usable[:position]:
            if values.get(a) and values.get(b) and values[a] != values[b]:
                continue
            try:
                if _same(distinct[b], distinct[a]):
                    equal.append((b, a))
            except NeedsAlgebra:
                open_pairs.append((b, a))
    bad: set[str] = set()
    if unsure or open_pairs:
        bad, verdicts = _ask(distinct, unsure, open_pairs, time_limit, pool)
        equal += [pair for pair, same in zip(open_pairs, verdicts, strict=True) if same]
    usable = [key for key in usable if key not in bad]
    return group_equal(usable, [pair for pair in equal if not bad & set(pair)], votes)


def _values(distinct: dict[str, str], keys: list[str], time_limit: float, pool: Pool) -> dict[str, str]:
    """The values of formulas at some points, which tell most pairs apart without comparing them; "" where unknown."""
    outcome = pool.run("reward_fns.algebra:values_of", [distinct[key] for key in keys], time_limit=time_limit)
    return dict(zip(keys, outcome.value, strict=True)) if outcome.kind is Kind.DONE else {}


def _same(a: str, b: str) -> bool:
    return compare(a, b, refuse_algebra).same or compare(b, a, refuse_algebra).same


def _ask(
    distinct: dict[str, str], unsure: list[str], pairs: list[tuple[str, str]], time_limit: float, pool: Pool
) -> tuple[set[str], list[bool]]:
    """A worker's verdict on unsure answers and open pairs: which answers are bad, which pairs equal.

    One task does it all; only when it hits a limit are the answers, and then the pairs, tried one by one.
    """
    texts = [distinct[key] for key in unsure]
    tasks = [(distinct[a], distinct[b]) for a, b in pairs]
    outcome = pool.run("reward_fns.algebra:partition", texts, tasks, time_limit=time_limit)
    if outcome.kind is Kind.DONE:
        bad, same = outcome.value
        return {unsure[index] for index in bad}, same
    _require_limit(outcome)
    involved = list(dict.fromkeys([*unsure, *(key for pair in pairs for key in pair)]))
    checks = pool.map("reward_fns.algebra:check_gold", [(distinct[key],) for key in involved], time_limit=time_limit)
    bad_keys = {key for key, check in zip(involved, checks, strict=True) if _is_bad(check)}
    remaining = [pair for pair in pairs if not bad_keys & set(pair)]
    rows: list[tuple[list[str], list[tuple[str, str]]]] = [([], [(distinct[a], distinct[b])]) for a, b in remaining]
    outcomes = dict(zip(remaining, pool.map("reward_fns.algebra:partition", rows, time_limit=time_limit), strict=True))
    for pair_outcome in outcomes.values():
        _require_limit(pair_outcome)
    return bad_keys, [
        pair in outcomes and outcomes[pair].kind is Kind.DONE and bool(outcomes[pair].value[1][0]) for pair in pairs
    ]


def _is_bad(check: Outcome) -> bool:
    _require_limit(check)
    return check.kind is not Kind.DONE or bool(check.value)


def _require_limit(outcome: Outcome) -> None:
    if outcome.kind is not Kind.DONE and outcome.kind not in _LIMITS:
        raise SkipError(f"the vote could not be counted: {outcome.kind.value} {outcome.detail}".strip())


def _reference_vote(texts: list[str], pool: Pool) -> Vote:
    if not texts:
        return _count([], [], 1, "earliest")
    matrix = _reference_matrix(texts, pool)
    counts = [sum(row) for row in matrix]
    winner = counts.index(max(counts))
    rewards = tuple(float(equal) for equal in matrix[winner])
    # Classes of a relation that need not be transitive: each text belongs with the earliest text it equals.
    earliest = [row.index(True) for row in matrix]
    sizes = Counter(earliest)
    numbers = {first: number for number, first in enumerate(sizes)}
    shares = [size / len(texts) for size in sizes.values()]
    return Vote(
        rewards=rewards,
        winner=winner,
        agreement=sum(rewards) / len(texts),
        entropy=-sum(share * math.log(share) for share in shares) + 0.0,
        n_classes=len(sizes),
        abstained=0,
        answers=tuple(texts),
        classes=tuple(numbers[first] for first in earliest),
    )


def _reference_matrix(texts: list[str], pool: Pool) -> list[list[bool]]:
    """Pairwise equality; a text that cannot be checked within the limit equals itself alone, as under the original's
    time-outs.
    """
    distinct = list(dict.fromkeys(texts))
    task = "reward_fns.algebra:reference_matrix"
    outcome = pool.run(task, distinct, time_limit=REFERENCE_TIME_LIMIT)
    equal: dict[tuple[str, str], bool]
    if outcome.kind is Kind.DONE:
        equal = {(a, b): outcome.value[i][j] for i, a in enumerate(distinct) for j, b in enumerate(distinct)}
    else:
        _require_limit(outcome)
        pairs = [(a, b) for i, a in enumerate(distinct) for b in distinct[i:]]
        outcomes = pool.map(task, [([a, b],) for a, b in pairs], time_limit=REFERENCE_TIME_LIMIT / 6)
        equal = {}
        for (a, b), pair_outcome in zip(pairs, outcomes, strict=True):
            _require_limit(pair_outcome)
            same = pair_outcome.kind is Kind.DONE and bool(pair_outcome.value[0][1])
            equal[a, b] = equal[b, a] = same
    return [[i == j or equal[a, b] for j, b in enumerate(texts)] for i, a in enumerate(texts)]


class CollapseAlarm:
    """Watches votes for a collapse of the policy: near-total agreement, or one answer to everything.

    Args:
        window: number of votes looked at; no alarm before it is full.
        agreement: mean agreement from which to raise the alarm.
        same_answer: share of votes with one and the same winning answer from which to raise it.
    """

    def __init__(self, window: int = 64, agreement: float = 0.95, same_answer: float = 0.5):
        if window < 1 or not 0 < agreement <= 1 or not 0 < same_answer <= 1:
            raise OptionError(f"expected a window and shares in (0, 1], got {window=} {agreement=} {same_answer=}")
        self._window = window
        self._recent: deque[tuple[float, str]] = deque(maxlen=window)
        self._agreement = agreement
        self._same_answer = same_answer

    def observe(self, vote: Vote) -> str:
        """Take in one vote; the reason for an alarm, or ""."""
        won = vote.answers[vote.winner] if vote.winner is not None and vote.answers else ""
        answer = squeeze(normal_form(won[:1000]))
        self._recent.append((vote.agreement, answer))
        if len(self._recent) < self._window:
            return ""
        mean = sum(agreement for agreement, _ in self._recent) / len(self._recent)
        if mean >= self._agreement:
            return f"mean agreement {mean:.3f} over the last {len(self._recent)} votes"
        answer, count = Counter(answer for _, answer in self._recent).most_common(1)[0]
        if answer and count >= self._same_answer * len(self._recent):
            return f"{count} of the last {len(self._recent)} votes were won by the answer {answer[:40]!r}"
        return ""

    def state_dict(self) -> dict:
        """The votes of the window, in JSON types, for a checkpoint."""
        return {"recent": [list(vote) for vote in self._recent]}

    def load_state_dict(self, state: dict) -> None:
        """Restore the votes of `state_dict`, the last ones when the window is shorter now."""
        self._recent.clear()
        self._recent.extend((float(agreement), str(answer)) for agreement, answer in state["recent"])
