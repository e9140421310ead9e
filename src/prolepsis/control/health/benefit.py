"""The benefit of each proposer in each traffic class: its drafts' share of the answers' tokens. Pure.

It is watched over all requests that may speculate, with a draft or without: a proposer that is no longer asked, as its
drafts do not pay, makes nothing slower, and this still shows that its benefit is gone. It belongs to no version.

A benefit that is gone keeps its baseline, and is back when the last requests bring half of it again.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from prolepsis.control.health.drift import DriftAlarm, Key
from prolepsis.control.statistics.change import MeanState, MeanWatch
from prolepsis.core.ended import RequestEnded
from prolepsis.core.reasons import STOPPED

_LEAST = 0.05  # of the tokens: below, there is no benefit that could go
_GONE = 0.5  # of the benefit
_LATEST = 50  # requests by which a benefit that is gone is judged
_LEAST_LATEST, _LATEST_S = 20, 900.0
"""Of them so many in so many seconds: a proposer of less traffic harms little, and nothing is known of it."""
_STOPPED = STOPPED | {"rolled_back", "no_decode", "not_reported"}


@dataclass(slots=True)
class _Benefit:
    watch: MeanWatch
    is_gone: bool = False
    num_since: int = 0  # requests since it is gone
    latest: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_LATEST))
    """Times of the last requests, and the shares of their tokens."""

    @property
    def is_back(self) -> bool:
        """Whether the last requests bring what the baseline tolerates."""
        usual, scores = self.watch.baseline, [score for _, score in self.latest]
        return usual is None or (self.num_since >= _LATEST and sum(scores) / _LATEST >= usual - _tolerance(usual))


class Benefits:
    """One watch for each proposer and traffic class in which it ever brought a token."""

    def __init__(self) -> None:
        self._all: dict[Key, _Benefit] = {}

    def restore(self, states: Mapping[Key, MeanState]) -> None:
        """Continue from what was learned before a restart, unless more is known by now."""
        for key, state in states.items():
            known = self._all.get(key)
            if known is None or known.watch.number < state.number:
                self._all[key] = _Benefit(MeanWatch(_tolerance, state))

    def states(self) -> Mapping[Key, MeanState]:
        return {key: benefit.watch.state for key, benefit in self._all.items()}

    def gone(self, now: float) -> Mapping[Key, bool]:
        """Return by proposer and traffic class whether its benefit is gone, of enough requests up to `now`."""
        return {
            key: benefit.is_gone and sum(at > now - _LATEST_S for at, _ in benefit.latest) >= _LEAST_LATEST
            for key, benefit in self._all.items()
        }

    def forget(self, key: Key) -> None:
        """Learn a benefit again, from the next requests."""
        if key in self._all:
            self._all[key] = _Benefit(MeanWatch(_tolerance))

    def share(self, key: Key) -> float | None:
        """Return the usual share of the answers' tokens that the proposer brings; None while that is not known."""
        known = self._all.get(key)
        return known.watch.baseline if known is not None else None

    def see(self, ended: RequestEnded, now: float) -> list[DriftAlarm]:
        """Process a request that ended, if it was free to speculate; return the benefits that are gone."""
        prompts = [
            prompt
            for prompt in ended.prompts
            if prompt.answer in ("complete", "cut")
            and prompt.request.speculation.mode in ("auto", "always")
            and prompt.stats.mode.reason not in _STOPPED
        ]
        num_tokens = sum(prompt.stats.num_output_tokens for prompt in prompts)
        if not num_tokens:
            return []
        traffic_class, alarms = prompts[0].request.traffic_class, list[DriftAlarm]()
        brought: dict[str, int] = {}
        for prompt in prompts:
            for name, counts in prompt.stats.proposers.items():
                brought[name] = brought.get(name, 0) + counts.num_accepted
                if (name, traffic_class) not in self._all:
                    self._all[name, traffic_class] = _Benefit(MeanWatch(_tolerance))
        allowed = prompts[0].request.speculation.proposers
        for key, benefit in self._all.items():
            if key[1] == traffic_class and (allowed is None or key[0] in allowed):
                alarms += _seen(benefit, key, min(1.0, brought.get(key[0], 0) / num_tokens), now)
        return alarms


def _seen(benefit: _Benefit, key: Key, score: float, now: float) -> list[DriftAlarm]:
    benefit.latest.append((now, score))
    if benefit.is_gone:  # its baseline stays what it was
        benefit.num_since += 1
        benefit.is_gone = not benefit.is_back
        return []
    watch = benefit.watch
    before, number, change = watch.mean, watch.number, watch.see(score)
    if change is None or before is None:
        return []
    if change == "higher":
        watch.restart()
        return []
    watch.bet_again()
    benefit.is_gone, benefit.num_since = True, 0
    return [DriftAlarm(now, *key, "", "benefit_gone", before, watch.recent, number)]


def _tolerance(baseline: float) -> float:
    return _GONE * baseline if baseline >= _LEAST else 1.0
