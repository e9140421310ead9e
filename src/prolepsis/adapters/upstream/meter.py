"""What a request is charged where the device seconds of its passes are not known."""

from collections.abc import Callable


class SharedTime:
    """Splits the time in which a pool has requests of ours equally among them, moment by moment.

    The shares add up to the time in which it had any. What others take of the pool is not known.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.num_requests = 0
        self._clock = clock
        self._share = 0.0
        self._at = clock()

    def enter(self) -> float:
        """One more request begins; return the reading at its begin."""
        share = self.read()
        self.num_requests += 1
        return share

    def read(self) -> float:
        """Return the reading now; a request's share is the difference of two readings, in seconds."""
        now = self._clock()
        if self.num_requests:
            self._share += (now - self._at) / self.num_requests
        self._at = now
        return self._share

    def leave(self) -> float:
        """A request ends; return the reading at its end."""
        share = self.read()
        self.num_requests -= 1
        return share
