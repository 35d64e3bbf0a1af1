"""Generate one response with two ordinary engines, cut at each change of author.

Who writes the next token depends only on the tokens emitted so far and on coins drawn beforehand, so the position of a
change of author is a stopping time: the current author may generate a few tokens more than it will write, and the rest
is discarded, without changing the distribution of the response. Engines that the vLLM plug-in refuses can decode in
tandem this way, at one request per chunk.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from vllm_patches.tandem.schedule import AuthorSchedule, ScheduleParams, mix64, stream_key

# Continues token ids: (token_ids, max_tokens, seed) -> the tokens it wrote, a stop token included. It must be able to
# answer again from any prefix, so nothing of its sampling may depend on earlier requests: no penalties, no min_tokens.
Continue = Callable[[Sequence[int], int, int], Awaitable[Sequence[int]]]


@dataclass(frozen=True)
class JointResponse:
    """A response by two authors.

    Attributes:
        token_ids: the emitted tokens, a stop token included.
        authorship_mask: one int per token, 1 = senior, 0 = junior.
        asked_at: one int per token, the response position from which the request that wrote it continued.
    """

    token_ids: list[int]
    authorship_mask: list[int]
    asked_at: list[int]


async def write_jointly(
    prompt_ids: Sequence[int],
    authors: Mapping[int, Continue],
    params: ScheduleParams,
    boundary_ids: Collection[int],
    *,
    stop_ids: Collection[int],
    max_tokens: int,
    chunk_tokens: int = 8,
) -> JointResponse:
    """Generate a response to `prompt_ids` with senior and junior in turns.

    Args:
        prompt_ids: token ids of the prompt.
        authors: 1 (senior) and 0 (junior) -> how to let them continue.
        params: strategy, probability and identity of the response.
        boundary_ids: the strategy's boundary set.
        stop_ids: tokens that end the response, by either author.
        max_tokens: most response tokens.
        chunk_tokens: most tokens asked for at once; at the paper's settings a turn lasts about three.

    Raises:
        ValueError: `word_align='before'`, which needs both models' samples of one position; or a length below 1.
        RuntimeError: an author answered with no token, or with more than it was asked for.
    """
    if params.word_align == "before":
        raise ValueError("word_align='before' needs both models' samples at every step; it has no portable path")
    if chunk_tokens < 1 or max_tokens < 1:
        raise ValueError(f"chunk_tokens={chunk_tokens} and max_tokens={max_tokens} must be at least 1")
    schedule = AuthorSchedule(params, boundary_ids)
    response = JointResponse([], [], [])
    ended = False
    while not ended and len(response.token_ids) < max_tokens:
        author, start = schedule.author, len(response.token_ids)
        budget = min(chunk_tokens, max_tokens - start)
        answer = await authors[author]([*prompt_ids, *response.token_ids], budget, chunk_seed(params, start))
        written = [int(token) for token in answer]
        if not 1 <= len(written) <= budget:
            raise RuntimeError(
                f"author {author} wrote {len(written)} tokens where between 1 and {budget} were asked for"
            )
        for token in written:
            response.token_ids.append(token)
            response.authorship_mask.append(author)
            response.asked_at.append(start)
            schedule.advance(token)
            ended = token in stop_ids
            if ended or schedule.author != author:
                break
        # an answer that is shorter than asked for ended on a stop token that only its engine knows
        ended = ended or len(response.token_ids) - start == len(written) < budget
    return response


def chunk_seed(params: ScheduleParams, position: int) -> int:
    """A 63-bit sampling seed for the chunk that starts at a response position, apart from the author coins."""
    return mix64(stream_key(params.seed, params.request) ^ mix64(position + 1)) >> 1
