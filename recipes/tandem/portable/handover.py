"""Generate one response with two ordinary engines, cut at each change of author.

Who writes the next token depends only on the tokens emitted so far and on coins drawn beforehand, so the position of a
change of author is a stopping time: the current author may generate a few tokens more than it will write, and the rest
is discarded, without changing the distribution of the response. Engines that the vLLM plug-in refuses can decode in
tandem this way, at one request per chunk; `rounds.py` needs fewer round trips.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

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
        requests: requests made of either engine.
        trips: round trips, one after the other; requests made at once are one.
        discarded: tokens that were sampled and thrown away.
    """

    token_ids: list[int]
    authorship_mask: list[int]
    asked_at: list[int]
    requests: int
    trips: int
    discarded: int


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
    if chunk_tokens < 1:
        raise ValueError(f"chunk_tokens={chunk_tokens} must be at least 1")
    text = JointText(prompt_ids, authors, params, boundary_ids, stop_ids, max_tokens)
    while not text.finished:
        chunk = await text.ask(text.author, chunk_tokens)
        text.trips += 1
        text.emit(chunk)
    return text.response()


@dataclass(frozen=True)
class Chunk:
    """What an author answered to one request.

    Attributes:
        author: who wrote it.
        start: response position of its first token.
        token_ids: what was written.
        ended: the author ended by itself, before it had written as much as it was asked for.
    """

    author: int
    start: int
    token_ids: list[int]
    ended: bool


@dataclass
class JointText:
    """A response being written: what has been emitted, and who writes next.

    Raises:
        ValueError: `word_align='before'`, or `max_tokens` below 1.
    """

    prompt_ids: Sequence[int]
    authors: Mapping[int, Continue]
    params: ScheduleParams
    boundary_ids: Collection[int]
    stop_ids: Collection[int]
    max_tokens: int
    trips: int = 0
    token_ids: list[int] = field(default_factory=list)
    _mask: list[int] = field(default_factory=list)
    _asked_at: list[int] = field(default_factory=list)
    _requests: int = 0
    _sampled: int = 0
    _ended: bool = False

    def __post_init__(self) -> None:
        if self.params.word_align == "before":
            raise ValueError("word_align='before' needs both models' samples at every step; it has no portable path")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens={self.max_tokens} must be at least 1")
        self.schedule = AuthorSchedule(self.params, self.boundary_ids)
        self.stop_ids = frozenset(self.stop_ids)

    @property
    def author(self) -> int:
        """Who writes the next token."""
        return self.schedule.author

    @property
    def finished(self) -> bool:
        """Whether the response has ended, by a stop token or at its length."""
        stopped = bool(self.token_ids) and self.token_ids[-1] in self.stop_ids
        return self._ended or stopped or len(self.token_ids) >= self.max_tokens

    async def ask(self, author: int, most: int, ahead: Sequence[int] = ()) -> Chunk:
        """Let an author continue what has been emitted, and then `ahead`, by at most `most` tokens.

        Raises:
            RuntimeError: it answered with no token, or with more than it was asked for.
        """
        start = len(self.token_ids) + len(ahead)
        wanted = min(most, self.max_tokens - start)
        prefix = [*self.prompt_ids, *self.token_ids, *ahead]
        self._requests += 1
        written = [int(token) for token in await self.authors[author](prefix, wanted, chunk_seed(self.params, start))]
        if not 1 <= len(written) <= wanted:
            raise RuntimeError(
                f"author {author} wrote {len(written)} tokens where between 1 and {wanted} were asked for"
            )
        self._sampled += len(written)
        return Chunk(author, start, written, len(written) < wanted)

    def emit(self, chunk: Chunk) -> list[int]:
        """Emit the chunk's tokens from the present position on, up to the next change of author; returns them.

        A chunk that its author ended by itself, on a stop token that only its engine knows, ends the response when all
        of it is emitted.
        """
        first = len(self.token_ids)
        for token in chunk.token_ids[first - chunk.start :]:
            self.token_ids.append(token)
            self._mask.append(chunk.author)
            self._asked_at.append(chunk.start)
            self.schedule.advance(token)
            if self.author != chunk.author or token in self.stop_ids:
                break
        self._ended = chunk.ended and len(self.token_ids) == chunk.start + len(chunk.token_ids)
        return self.token_ids[first:]

    def response(self) -> JointResponse:
        """What was written and what it cost."""
        discarded = self._sampled - len(self.token_ids)
        return JointResponse(self.token_ids, self._mask, self._asked_at, self._requests, self.trips, discarded)


def chunk_seed(params: ScheduleParams, position: int) -> int:
    """A 63-bit sampling seed for the chunk that starts at a response position, apart from the author coins."""
    return mix64(stream_key(params.seed, params.request) ^ mix64(position + 1)) >> 1
