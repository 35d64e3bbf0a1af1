"""Generate one response in rounds: the junior drafts several tokens, the senior writes its own turns among them.

`handover.py` waits for an answer at every change of author, about every three tokens. A round waits twice, whatever it
writes. With the text x emitted so far given, and the junior to write:

1. the junior continues x by a draft d_1 ... d_K;
2. the schedule is replayed over the draft. At the start k of each of the senior's turns in it (and at k = K + 1, where
   the senior writes after the whole draft) the senior continues x d_1 ... d_(k-1); all these requests are made at once;
3. the tokens are settled from the left. The junior's positions take the draft's tokens, a turn of the senior's takes
   the senior's own, until the author changes. Where they equal the draft's, the draft stands and goes on; where not,
   the rest of it is thrown away and the round ends.

Where the senior writes next, its turn is asked for as in `handover.py`: a draft from there would seldom live to the
junior's turn. The first turn of the junior and the senior's turn after it are always written, as far as K and
`chunk_tokens` reach, so a round emits at least what two requests of `handover.py` would.

*Law.* Every emitted token is a sample of its author's law after the text before it, drawn independently of all else:
tandem decoding. Induction over the response's positions. The text before position t fixes the author, by the schedule.
Junior: the token is d_t. The draft was made after x, and everything emitted in this round before t equals it, so d_t
was sampled after exactly the text before t. Senior: the token belongs to the answer asked for at the start k of this
turn; that request read x d_1 ... d_(k-1), which stood, and its earlier tokens are the ones emitted since, so again the
token was sampled after exactly the text before t. Whether position t is reached with this request depends only on the
text before t and on other requests, never on the token or on what the request wrote after it. Tokens that are thrown
away decide nothing that is emitted later: the positions behind them are asked for again. So neither the law nor, with
authors that decode greedily, the text depends on K (compare `vllm_patches/tandem/speculative/verify.py`). The two
engines share no noise, so a draft's token stands on the senior's turn with the probability that two independent samples
agree, the sum over v of S(v) J(v).

The senior's log-probs are those of the answers its tokens come from.
"""

import asyncio
import copy
from collections.abc import Collection, Mapping, Sequence

from recipes.tandem.portable.handover import Chunk, Continue, JointResponse, JointText
from vllm_patches.tandem.schedule import JUNIOR, SENIOR, ScheduleParams


async def write_in_rounds(
    prompt_ids: Sequence[int],
    authors: Mapping[int, Continue],
    params: ScheduleParams,
    boundary_ids: Collection[int],
    *,
    stop_ids: Collection[int],
    max_tokens: int,
    draft_tokens: int,
    chunk_tokens: int = 8,
) -> JointResponse:
    """Generate a response to `prompt_ids`, the junior drafting `draft_tokens` at a time.

    Args:
        prompt_ids, authors, params, boundary_ids, stop_ids, max_tokens: as `handover.write_jointly`.
        draft_tokens: most tokens of a draft, K.
        chunk_tokens: most tokens asked of the senior at once.

    Raises:
        ValueError: `word_align='before'`, which needs both models' samples of one position; or a length below 1.
        RuntimeError: an author answered with no token, or with more than it was asked for.
    """
    if draft_tokens < 1 or chunk_tokens < 1:
        raise ValueError(f"draft_tokens={draft_tokens} and chunk_tokens={chunk_tokens} must be at least 1")
    text = JointText(prompt_ids, authors, params, boundary_ids, stop_ids, max_tokens)
    while not text.finished:
        author = text.author
        chunk = await text.ask(author, draft_tokens if author == JUNIOR else chunk_tokens)
        text.trips += 1
        if author == SENIOR:
            text.emit(chunk)
            continue
        turns = senior_turns(text, chunk)
        answers = await _all(text.ask(SENIOR, chunk_tokens, ahead=chunk.token_ids[:turn]) for turn in turns)
        text.trips += bool(turns)
        settle(text, chunk, dict(zip(turns, answers, strict=True)))
    return text.response()


def senior_turns(text: JointText, draft: Chunk) -> list[int]:
    """Positions in the draft, from 0, at which a turn of the senior's starts if the draft stands up to there.

    The position after the draft is one of them where the senior writes there and the text goes on.
    """
    schedule, before, turns = copy.copy(text.schedule), JUNIOR, []
    for position, token in enumerate([*draft.token_ids, None]):
        goes_on = token is not None or not (draft.ended or draft.start + position >= text.max_tokens)
        if goes_on and schedule.author == SENIOR and before == JUNIOR:
            turns.append(position)
        if token is None or token in text.stop_ids:
            break
        before = schedule.author
        schedule.advance(token)
    return turns


def settle(text: JointText, draft: Chunk, answers: Mapping[int, Chunk]) -> None:
    """Emit what a round writes: the draft at the junior's positions, the senior's answers at its own.

    Args:
        text: the response, at the position where the draft starts; it is advanced.
        draft: the junior's continuation.
        answers: position in the draft -> the senior's continuation of the draft up to there.
    """
    while not text.finished:
        position = len(text.token_ids) - draft.start
        if text.author == JUNIOR and position < len(draft.token_ids):
            text.emit(draft)
        elif text.author == SENIOR and position in answers:
            written = text.emit(answers[position])
            if written != draft.token_ids[position : position + len(written)]:
                return
        else:
            return


async def _all(requests) -> list[Chunk]:
    """The answers to requests made at once; where one fails, the others are given up."""
    tasks = [asyncio.ensure_future(request) for request in requests]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
