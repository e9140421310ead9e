"""Requests whose drafts are compared though they do not pay, so that every proposer can be judged.

Sequences whose drafts do not pay pause (`spec.pauses`), and costly proposers are asked where they gain
(`spec.effort`). So one that went bad, or became good again, is hardly seen, least where traffic is little. A probed
request has its first drafts made and compared with what plain decoding emits, none of them verified.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence

PROBED_DRAFTS = 4
"""Steps of a probed request in which drafts are made for it."""
_EVERY_S = 3.0
_MEMORY_S = 60.0


class ProbeBudget:
    """Lets one request in three seconds be probed, where fewer had a draft of a proposer decided in the last minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next = clock() + _EVERY_S
        self._ended: dict[tuple[str, str], deque[float]] = {}
        """When the last requests ended that had a draft verified or compared, by proposer and traffic class."""

    def admit(self, traffic_class: str, proposers: Sequence[str]) -> bool:
        """Return whether a request that begins is probed."""
        now = self._clock()
        if now < self._next or not any(self._is_seldom(name, traffic_class, now) for name in proposers):
            return False
        self._next = now + _EVERY_S
        return True

    def saw(self, proposer: str, traffic_class: str) -> None:
        """A request ended that had a draft of the proposer verified or compared."""
        ended = self._ended.setdefault((proposer, traffic_class), deque(maxlen=int(_MEMORY_S / _EVERY_S)))
        ended.append(self._clock())

    def _is_seldom(self, proposer: str, traffic_class: str, now: float) -> bool:
        ended = self._ended.get((proposer, traffic_class))
        return ended is None or len(ended) < (ended.maxlen or 0) or now - ended[0] > _MEMORY_S
