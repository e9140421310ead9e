"""Probes: requests whose drafts are compared although they do not pay, so that every proposer can be judged.

Sequences whose drafts do not pay pause (`spec.pauses`), and costly proposers are asked where they gain
(`spec.effort`). So one that went bad, or became good again, is hardly seen, least where traffic is little. A probed
request has its first drafts made and compared with what plain decoding emits, none of them verified.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence

PROBED_DRAFTS = 2
"""Steps of a probed request in which drafts are made for it."""
_SHARE = 0.0025
"""Share of the time that probes may take."""
_LEAST_S = 0.005
"""What a probe is taken for at least: what it takes is known when its prompt is read, and others may begin before."""
_ENOUGH, _MEMORY_S = 8, 15.0
"""Requests with a decided draft, and the time in which there were so many where nothing has to be probed."""


class ProbeBudget:
    """Lets a request be probed every two seconds, or as a share of the time allows, where a proposer is hardly judged.

    A verdict on a rollout takes some sixty requests; a breaker, which counts drafts, may be open by then.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next = clock() + _LEAST_S / _SHARE
        self._ended: dict[tuple[str, str], deque[float]] = {}
        """When the last requests ended that had a draft verified or compared, by proposer and traffic class."""
        self.num_probed = 0
        self.seconds = 0.0
        """Processor time that probes took so far."""

    def admit(self, traffic_class: str, proposers: Sequence[str]) -> bool:
        """Return whether a request that begins is probed."""
        now = self._clock()
        if now < self._next or not any(self._is_seldom(name, traffic_class, now) for name in proposers):
            return False
        self.num_probed += 1
        self._next = now + max(_LEAST_S, self.seconds / self.num_probed) / _SHARE
        return True

    def spend(self, seconds: float) -> None:
        """Drafts of probed requests took so long, of the processor."""
        self.seconds += seconds

    def saw(self, proposer: str, traffic_class: str) -> None:
        """A request ended that had a draft of the proposer verified or compared."""
        ended = self._ended.setdefault((proposer, traffic_class), deque(maxlen=_ENOUGH))
        ended.append(self._clock())

    def exchange(self, proposer: str) -> None:
        """Another proposer has this name, of which no draft was decided."""
        self._ended = {key: ended for key, ended in self._ended.items() if key[0] != proposer}

    def _is_seldom(self, proposer: str, traffic_class: str, now: float) -> bool:
        ended = self._ended.get((proposer, traffic_class))
        return ended is None or len(ended) < _ENOUGH or now - ended[0] > _MEMORY_S
