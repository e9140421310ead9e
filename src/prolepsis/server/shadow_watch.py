"""Requests in shadow while serving: what came of each, once it has ended."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prolepsis.control.shadow_evidence import ShadowEvidence
from prolepsis.core.stats import EffectiveReason
from prolepsis.server.door.entry import Entry

_TELLS: tuple[EffectiveReason, ...] = (
    "compared",
    "no_draft",
    "not_worth_it",
    "too_costly",
    "resting",
    "breaker_open",
    "no_decode",
)
"""Reasons of requests that say what speculation would have brought; others were stopped or stored."""


class ShadowWatch:
    """Gathers them. Belongs to one event loop."""

    def __init__(self, version: Callable[[], str] = str) -> None:
        """`version`: of what is drafted with; the evidence belongs to one."""
        self.evidence = ShadowEvidence()
        self._version = version

    @contextmanager
    def follow(self, entry: Entry) -> Iterator[None]:
        """Take in the request of `entry`, which has ended when the block is left, if it drafts in shadow."""
        try:
            yield
        finally:
            ended = entry.client.ended
            if entry.request.speculation.shadow and ended is not None and ended.stats.mode.reason in _TELLS:
                self.evidence.add(entry.request.slice, ended.stats, self._version())
