"""Spread requests over several endpoints of one model: each gets as much as it answers, one that fails is left out.

Every endpoint has a limit of requests under way. One with room takes the next request, so that a slow endpoint takes
fewer; a failed request halves the limit and goes back to the front of the queue, an answer raises the limit by one.
After `FAILURES` failures in a row, or where it refuses every request, an endpoint is left out, and what it had under
way goes to the others.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from recipes.core.sampling import Request
from reward_fns.completions import Answer
from reward_fns.errors import EndpointError

FAILURES = 3


@dataclass
class Member:
    """One endpoint of a pool.

    Attributes:
        name: its address, for messages.
        ask: sends one request.
        most: most requests under way.
        limit: of requests under way now; between 1 and `most`.
        fault: why it was left out; None while it is asked.
    """

    name: str
    ask: Callable[[Request], Awaitable[Answer]]
    most: int
    limit: float = field(init=False)
    failures: int = field(init=False, default=0)
    under_way: int = field(init=False, default=0)
    fault: EndpointError | None = field(init=False, default=None)

    def __post_init__(self):
        self.limit = float(self.most)

    def answered(self) -> None:
        """Note an answer."""
        self.failures, self.limit = 0, min(self.most, self.limit + 1)

    def failed(self, error: EndpointError) -> None:
        """Note a request that got no answer."""
        self.failures, self.limit = self.failures + 1, max(1.0, self.limit / 2)
        if error.kind == "refused" or self.failures >= FAILURES:
            self.fault = error


async def spread(
    requests: Iterable[Request],
    members: Sequence[Member],
    on_done: Callable[[Request, Answer], None],
    warn: Callable[[Member], None],
) -> None:
    """Answer every request by one of the members, in any order.

    Args:
        on_done: called once for each request.
        warn: called when a member is left out while others go on.

    Raises:
        EndpointError: a request that no endpoint would answer, or the last fault when every member is left out.
    """
    waiting = deque(requests)
    tasks: dict[asyncio.Task[Answer], tuple[Member, Request]] = {}

    def begin() -> None:
        while waiting and (free := [one for one in members if one.fault is None and one.under_way < int(one.limit)]):
            member, request = min(free, key=lambda one: one.under_way / one.limit), waiting.popleft()
            member.under_way += 1
            tasks[asyncio.ensure_future(member.ask(request))] = member, request

    def give_back(task: asyncio.Task[Answer]) -> Request:
        member, request = tasks.pop(task)
        member.under_way -= 1
        return request

    try:
        while waiting or tasks:
            begin()
            if not tasks:
                raise next(error for member in reversed(members) if (error := member.fault))
            for task in (await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED))[0]:
                if task not in tasks:
                    continue
                member, request = tasks[task][0], give_back(task)
                try:
                    answer = task.result()
                except EndpointError as error:
                    if error.kind == "request":
                        raise
                    waiting.appendleft(request)
                    member.failed(error)
                    if member.fault is None:
                        continue
                    for other in [other for other, (owner, _) in tasks.items() if owner is member]:
                        other.cancel()
                        waiting.appendleft(give_back(other))
                    if any(one.fault is None for one in members):
                        warn(member)
                else:
                    member.answered()
                    on_done(request, answer)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
