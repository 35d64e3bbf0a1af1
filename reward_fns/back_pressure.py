"""A limit on requests in flight that gives way to an endpoint that is overloaded.

Additive increase, multiplicative decrease, as in TCP (Chiu and Jain 1989): each call that went through raises the
limit by one over itself, each that the endpoint turned away halves it. Callers beyond the limit wait in their order.
"""

import asyncio
from collections import deque


class BackPressure:
    """The limit for one event loop; `limit` moves between 1 and `most`.

    Args:
        most: requests in flight at most.
    """

    def __init__(self, most: int):
        self.most = most
        self.limit = float(most)
        self.in_flight = 0
        self._waiting: deque[asyncio.Future] = deque()

    async def enter(self) -> None:
        """Wait for a place."""
        while self.in_flight >= int(self.limit):
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._wake_next()  # the place that was meant for this caller
                raise
            finally:
                if turn in self._waiting:
                    self._waiting.remove(turn)
        self.in_flight += 1

    def leave(self, turned_away: bool) -> None:
        """Give the place back, and say whether the endpoint was overloaded."""
        self.in_flight -= 1
        self.limit = max(1.0, self.limit / 2) if turned_away else min(float(self.most), self.limit + 1 / self.limit)
        for _ in range(max(0, int(self.limit) - self.in_flight)):
            self._wake_next()

    def _wake_next(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
