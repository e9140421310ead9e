"""Probes: requests whose drafts are compared although they do not pay, so that every proposer can be judged.

Sequences whose drafts do not pay pause (`spec.pauses`), and costly proposers are asked where they gain
(`spec.effort`). So one that went bad, or became good again, is hardly seen, least where traffic is little. A probed
request has its first drafts made and compared with what plain decoding emits, none of them verified.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence

PROBED_DRAFTS = 4
"""Steps of a probed request in which drafts are made for it."""
_EVERY_S = 1.0
_SHARE = 0.01
"""Share of the elapsed time that probes may take."""
_MOST_SAVED_S = 3.0
"""Most unused time that probes may save up: enough to judge a proposer that is not asked otherwise."""
_ENOUGH, _MEMORY_S = 8, 15.0
"""Requests with a decided draft, and the time in which there were so many where nothing has to be probed."""


class ProbeBudget:
    """Lets one request in a second be probed, in a share of the time, where a proposer is hardly judged.

    A verdict on a rollout takes some sixty requests; a breaker, which counts drafts, may be open by then.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._looked_at = clock()
        self._next = self._looked_at + _EVERY_S
        self._saved_s = _MOST_SAVED_S
        self._ended: dict[tuple[str, str], deque[float]] = {}
        """When the last requests ended that had a draft verified or compared, by proposer and traffic class."""
        self.num_probed = 0
        self.seconds = 0.0
        """Processor time that probes took so far."""

    def admit(self, traffic_class: str, proposers: Sequence[str]) -> bool:
        """Return whether a request that begins is probed."""
        now = self._clock()
        self._saved_s = min(_MOST_SAVED_S, self._saved_s + _SHARE * (now - self._looked_at))
        self._looked_at = now
        if now < self._next or self._saved_s <= 0.0:
            return False
        if not any(self._is_seldom(name, traffic_class, now) for name in proposers):
            return False
        self._next = now + _EVERY_S
        self.num_probed += 1
        return True

    def spend(self, seconds: float) -> None:
        """Drafts of probed requests took so long, of the processor."""
        self._saved_s -= seconds
        self.seconds += seconds

    def saw(self, proposer: str, traffic_class: str) -> None:
        """A request ended that had a draft of the proposer verified or compared."""
        ended = self._ended.setdefault((proposer, traffic_class), deque(maxlen=_ENOUGH))
        ended.append(self._clock())

    def _is_seldom(self, proposer: str, traffic_class: str, now: float) -> bool:
        ended = self._ended.get((proposer, traffic_class))
        return ended is None or len(ended) < _ENOUGH or now - ended[0] > _MEMORY_S
