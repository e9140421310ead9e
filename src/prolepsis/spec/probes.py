"""Requests whose drafts are compared though they do not pay, so that every proposer can be judged.

Sequences whose drafts do not pay pause (`spec.pauses`), and costly proposers are asked where they gain
(`spec.effort`). So one that went bad, or became good again, is hardly seen, least where traffic is little. A probed
request has its first drafts made and compared with what plain decoding emits, none of them verified.
"""

import time
from collections.abc import Callable, Sequence

from prolepsis.spec.ledger import Ledger

PROBED_DRAFTS = 4
"""Steps of a probed request in which drafts are made for it."""
_EVERY_S = 3.0
_ENOUGH_PER_S = 1.0  # steps of a sequence in which it is asked for a draft
_MEMORY_S = 60.0


class ProbeBudget:
    """Lets one request in three seconds be probed, where a proposer was asked less than once a second lately."""

    def __init__(self, ledger: Ledger, clock: Callable[[], float] = time.monotonic) -> None:
        self._ledger = ledger
        self._clock = clock
        self._next = clock() + _EVERY_S
        self._since: dict[tuple[str, str], tuple[float, int]] = {}

    def admit(self, traffic_class: str, proposers: Sequence[str]) -> bool:
        """Return whether a request that begins is probed."""
        now = self._clock()
        seldom = [self._is_seldom(name, traffic_class, now) for name in proposers]
        if now < self._next or not any(seldom):
            return False
        self._next = now + _EVERY_S
        return True

    def _is_seldom(self, proposer: str, traffic_class: str, now: float) -> bool:
        """Return whether the proposer was asked too seldom in the minute that began last."""
        key, asked = (proposer, traffic_class), self._ledger.num_asked(proposer, traffic_class)
        began, before = self._since.get(key, (now, asked))
        is_seldom = asked - before < _ENOUGH_PER_S * (now - began)
        if key not in self._since or now - began >= _MEMORY_S or asked < before:
            self._since[key] = (now, asked)
        return is_seldom
