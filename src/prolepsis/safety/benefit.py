"""The benefit of each proposer in each traffic class: its drafts' share of the answers' tokens. Pure.

It is watched over all requests that may speculate, with a draft or without: a proposer that is no longer asked, as its
drafts do not pay, makes nothing slower, and this still shows that its benefit is gone. It belongs to no version.
"""

from collections.abc import Mapping

from prolepsis.core.ended import PromptEnded, RequestEnded
from prolepsis.core.stats import EffectiveReason
from prolepsis.safety.drift import DriftAlarm, Key
from prolepsis.statistics.change import MeanState, MeanWatch

_LEAST = 0.05  # of the tokens: below, there is no benefit that could go
_GONE = 0.5  # of the benefit
_STOPPED: tuple[EffectiveReason, ...] = (
    "killed",
    "plan_off",
    "rolled_back",
    "overload_plain",
    "overload_batch_waits",
    "overload_low_refused",
    "no_decode",
    "not_reported",
    "pool_down",
)
"""Reasons that have nothing to do with the proposer."""


class Benefits:
    """One watch for each proposer and traffic class in which it ever brought a token."""

    def __init__(self) -> None:
        self._watches: dict[Key, MeanWatch] = {}

    def restore(self, states: Mapping[Key, MeanState]) -> None:
        """Continue from what was learned before a restart, unless more is known by now."""
        for key, state in states.items():
            known = self._watches.get(key)
            if known is None or known.number < state.number:
                self._watches[key] = MeanWatch(_tolerance, state)

    def states(self) -> Mapping[Key, MeanState]:
        return {key: watch.state for key, watch in self._watches.items()}

    def share(self, key: Key) -> float | None:
        """Return the usual share of the answers' tokens that the proposer brings; None while that is not known."""
        watch = self._watches.get(key)
        return watch.baseline if watch is not None else None

    def see(self, ended: RequestEnded, now: float) -> list[DriftAlarm]:
        """Process a request that ended; return the benefits that are gone."""
        prompts = [prompt for prompt in ended.prompts if _counts(prompt)]
        num_tokens = sum(prompt.stats.num_output_tokens for prompt in prompts)
        if not num_tokens:
            return []
        traffic_class, alarms = prompts[0].request.traffic_class, list[DriftAlarm]()
        brought: dict[str, int] = {}
        for prompt in prompts:
            for name, counts in prompt.stats.proposers.items():
                brought[name] = brought.get(name, 0) + counts.num_accepted
                self._watches.setdefault((name, traffic_class), MeanWatch(_tolerance))
        allowed = prompts[0].request.speculation.proposers
        for key, watch in self._watches.items():
            if key[1] == traffic_class and (allowed is None or key[0] in allowed):
                alarms += _seen(watch, key, min(1.0, brought.get(key[0], 0) / num_tokens), now)
        return alarms


def _seen(watch: MeanWatch, key: Key, score: float, now: float) -> list[DriftAlarm]:
    before, number, change = watch.mean, watch.number, watch.see(score)
    if change is None or before is None:
        return []
    alarm = DriftAlarm(now, *key, "", "benefit_gone", before, watch.recent, number)
    watch.restart()
    return [alarm] if change == "lower" else []


def _tolerance(baseline: float) -> float:
    return _GONE * baseline if baseline >= _LEAST else 1.0


def _counts(prompt: PromptEnded) -> bool:
    """Return whether the prompt's answer was free to speculate."""
    is_answered = prompt.answer in ("complete", "cut")
    may = prompt.request.speculation.mode in ("auto", "on")
    return is_answered and may and prompt.stats.mode.reason not in _STOPPED
