"""Judge answers by the majority of the Solver's own answers in place of the Proposer's answer.

Source: R-Zero (arXiv 2508.05004): the pass rate of a question is the share of the majority answer, which is also its
label.
"""

from collections.abc import Mapping

from recipes.common.groups import uid_of
from recipes.pasodoble.parsing import extract_answer
from reward_fns.errors import SkipError
from reward_fns.majority import majority_vote
from reward_fns.result import Result, Score, Skip


def judge_by_majority(responses: Mapping[str, str]) -> tuple[dict[str, Result], dict[str, str]]:
    """Vote on the responses to each question.

    An answer is the last closed box of the whole response, as elsewhere in this recipe. Of several answers that are
    equally frequent the earliest wins, so that the mean reward is always the share of the largest class.

    Args:
        responses: text of each response by its key, those of a question in the order of their sessions.

    Returns:
        A Score of 1 or 0 for each response, or a Skip where the answers of its question could not be compared; and the
        key of the first response with the winning answer, for each question on which one was given.
    """
    keys: dict[str, list[str]] = {}
    for key in responses:
        keys.setdefault(uid_of(key), []).append(key)
    results: dict[str, Result] = {}
    winners: dict[str, str] = {}
    for uid, group in keys.items():
        answers = [extract_answer(responses[key]) for key in group]
        try:
            vote = majority_vote(
                [f"\\boxed{{{answer}}}" if answer else "" for answer in answers], min_answers=1, ties="earliest"
            )
        except SkipError as error:
            results |= {key: Skip(f"vote_failed: {error}") for key in group}
            continue
        if vote.winner is not None:
            winners[uid] = group[vote.winner]
        verdicts = vote.results() if vote.decided else [Score(0.0, "no_answer")] * len(group)
        results |= dict(zip(group, verdicts, strict=True))
    return results, winners
