"""What speculation brings on each route, in one sentence: against the control, or why there is no figure. Pure.

The speedup is that of device time: without speculation over with it, for the same requests, as `ArmComparison` has it.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prolepsis.control.cost.comparison import MIN_REQUESTS, ArmComparison
from prolepsis.core.kill_scope import EVERYTHING
from prolepsis.core.reasons import IN_WORDS, EffectiveReason
from prolepsis.core.stats import EffectiveMode
from prolepsis.core.traffic_sums import Interval

LATEST = 100  # requests of a route by which it is told whether speculation is on


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteSpeedup:
    """One route, by the newest stage of one rollout."""

    route: str
    rollout: str  # Empty: no rollout has compared requests of the route
    speedup: Interval | None  # device time without speculation over that with it
    num_speculating: int
    num_control: int
    off: EffectiveReason | None  # why none of the latest requests speculated; null: one did, or none came
    sentence: str


class LatestModes:
    """What became of the latest requests of each route; those that a rollout keeps plain are left out."""

    def __init__(self) -> None:
        self._modes: dict[str, deque[EffectiveMode]] = {}

    def observe(self, route: str, mode: EffectiveMode, *, is_control: bool) -> None:
        latest = self._modes.setdefault(route, deque(maxlen=LATEST))
        if not is_control:
            latest.append(mode)

    @property
    def routes(self) -> Sequence[str]:
        return sorted(self._modes)

    def off(self, route: str, killed: Collection[str] = ()) -> EffectiveReason | None:
        """Return why no request speculates, the most frequent reason; None: one did, or none came.

        `killed`: scopes that the kill switch stops now.
        """
        if EVERYTHING in killed or f"route:{route}" in killed:
            return "killed"
        modes = self._modes.get(route, ())
        if not modes or any(mode.mode == "on" for mode in modes):
            return None
        return Counter(mode.reason for mode in modes).most_common(1)[0][0]


def speedups(
    modes: LatestModes, compared: Mapping[str, Sequence[ArmComparison]], killed: Collection[str] = ()
) -> Iterator[RouteSpeedup]:
    """Yield a line for each route and rollout that compares its requests; `compared`: groups by rollout."""
    for route in modes.routes:
        off = modes.off(route, killed)
        groups = {
            rollout: group
            for rollout, of_rollout in compared.items()
            for group in of_rollout
            if (group.by, group.value) == ("route", route)
        }
        for rollout, group in groups.items():
            yield _line(route, rollout, group, off)
        if not groups:
            yield _line(route, "", None, off)


def _line(route: str, rollout: str, group: ArmComparison | None, off: EffectiveReason | None) -> RouteSpeedup:
    speedup = group.saved.mapped(_times) if group is not None and group.saved.estimate is not None else None
    text = f"off, {IN_WORDS[off]}" if off is not None else _text(group, speedup)
    return RouteSpeedup(
        route=route,
        rollout=rollout,
        speedup=speedup,
        num_speculating=group.num_speculating if group is not None else 0,
        num_control=group.num_control if group is not None else 0,
        off=off,
        sentence=f"speculation here: {text}",
    )


def _times(saved: float) -> float | None:
    return 1.0 / (1.0 - saved) if saved < 1.0 else None


def _text(group: ArmComparison | None, speedup: Interval | None) -> str:
    if group is None:
        return "not measured, as no rollout keeps control requests of the route"
    for number, kind in ((group.num_control, "control"), (group.num_speculating, "speculating")):
        if number < MIN_REQUESTS:
            return f"no figure yet, {number} of {MIN_REQUESTS} {kind} requests needed"
    if speedup is None:
        return f"no figure yet after {group.num_control:,} control requests"
    bounds = [None if bound is None else f"{bound:.2f}" for bound in (speedup.lower, speedup.upper)]
    return f"{speedup.estimate:.2f}x ({bounds[0] or 0} to {bounds[1] or 'any'}), {group.num_control:,} control requests"
