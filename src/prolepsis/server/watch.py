"""What may turn speculation off while serving, looked at several times a second."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import structlog

from prolepsis.control.drift.stream import load_detectors
from prolepsis.server.breaker_watch import BreakerWatch
from prolepsis.server.drift_watch import DriftWatch
from prolepsis.server.feature_flags import FeatureFlags
from prolepsis.server.kill_switch import KillSwitch

LOOK_EVERY_S = 0.2
ASK_EVERY_S = 1.0
"""How often a provider without a file is asked for the flag that stops everything; a file that changed, at once."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Watch:
    """Kill switch, flags (None: none are configured), breakers and drift (None: they are off)."""

    kill: KillSwitch
    flags: FeatureFlags | None
    breakers: BreakerWatch | None
    drift: DriftWatch | None

    async def run(self) -> None:
        """Look until cancelled; at drift from when its detectors are imported."""
        loading = None if self.drift is None else asyncio.create_task(asyncio.to_thread(load_detectors))
        for number in count():
            is_due = number % round(ASK_EVERY_S / LOOK_EVERY_S) == 0
            await self.look(drift=loading is not None and loading.done(), ask=is_due)
            await asyncio.sleep(LOOK_EVERY_S)

    async def look(self, *, drift: bool = True, ask: bool = True) -> None:
        """Look once at each, or leave drift out; one that fails is logged, and keeps the others from nothing.

        `ask`: the flag that stops everything is asked for even where its file did not change.
        """
        _contained(self.kill.look)
        if self.flags is not None and (_contained(self.flags.look) or ask):
            self.kill.follow(await self.flags.killed())
        if self.breakers is not None:
            _contained(self.breakers.look)
        if drift and self.drift is not None:
            _contained(self.drift.look)


def _contained(look: Callable[[], bool | None]) -> bool:
    """Return what `look` does."""
    try:
        return bool(look())
    except Exception:  # contained: if control fails, the last plan stays
        log.exception("watch_failed")
        return False
