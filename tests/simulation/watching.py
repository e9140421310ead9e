"""Simulated rollouts that are on: a request a second for weeks, judged over a moving window by eight guardrails.

False alarms are counted on whole days at once, with a bet that begins each minute and none left out: the evidence is
at least that of `WindowEvidence`, which merges old spans, and a test compares the two. Damage is shown to the judge.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from prolepsis.control.statistics.guardrail import Guardrail
from prolepsis.control.statistics.judge import Levels, outcome_of
from prolepsis.control.statistics.means import NUM_STAKES, Limit, sign_of
from prolepsis.control.statistics.window import NUM_STARTS, WindowEvidence
from tests.simulation.guarantees import GUARDRAILS as COMPARED
from tests.simulation.guarantees import Stream, calibrated
from tests.simulation.rollout_traffic import Damage, Traffic, Values

SHARE = 0.95
PER_MINUTE = 60
DAY = 1440
LEVELS = Levels(num_starts=NUM_STARTS)
_TAKEN = Limit(limit=0.3, num_points=33)
GUARDRAILS = tuple(replace(g, measure=_TAKEN) if g.name == "acceptance" else g for g in COMPARED)
"""As in a policy: plain requests have no acceptance, so that is held against a limit."""


def known(traffic: Traffic) -> tuple[Guardrail, ...]:
    """Return the guardrails with what the control showed before."""
    referring = {g.name: g for g in calibrated(traffic)}
    return tuple(g if isinstance(g.measure, Limit) else referring[g.name] for g in GUARDRAILS)


def peak_evidence(seed: int, num_days: int, *, minutes: int = DAY) -> float:
    """Return the most evidence of harm (natural log) of any guardrail in so many healthy days of so many minutes."""
    traffic = Traffic(seed)
    guardrails = known(traffic)
    streams = [_Minutes(g) for g in guardrails]
    total, peak = np.full((len(streams), NUM_STAKES), -np.inf), -np.inf
    for _ in range(num_days):
        canary, values = traffic.batch(minutes * PER_MINUTE, SHARE, Damage())
        growth = np.stack([s.growth(canary, values[s.guardrail.metric]) for s in streams], axis=1)
        for minute in growth:  # [guardrails, stakes]
            total = np.logaddexp(total, 0.0) + minute
            best = total.max()
            if best > peak:  # the mean over stakes is at most that
                means = np.logaddexp.reduce(total, axis=1) - np.log(NUM_STAKES)
                peak = max(peak, float(means.max()))
    return peak


class _Minutes(Stream):
    """One guardrail, minute by minute."""

    def __init__(self, guardrail: Guardrail) -> None:
        super().__init__(guardrail, SHARE)
        contrast = guardrail.measure.contrast(guardrail.better, SHARE)
        self._logs = self._log_factors(contrast.stakes(sign_of(guardrail.better)))

    def growth(self, canary: NDArray[np.bool_], values: Values) -> Values:
        """Return what each minute adds to the log wealth of a bet [minutes, stakes]."""
        weights = self._on_knots(canary, values, ~np.isnan(values))  # [2 * points, requests]
        by_minute = weights.reshape(len(weights), -1, PER_MINUTE).sum(axis=2)
        return np.asarray(by_minute.T @ self._logs.T)


def needed(levels: Levels = LEVELS) -> float:
    """Return the evidence at which a guardrail of these fails."""
    return float(-np.log(levels.fail_alpha(GUARDRAILS)))


def watched(seed: int, num_minutes: int) -> tuple[WindowEvidence, Traffic, tuple[Guardrail, ...]]:
    """Return the window after so many healthy minutes, by the code that serves."""
    traffic = Traffic(seed)
    guardrails = known(traffic)
    window = WindowEvidence("simulated", 3, spans=())
    for second, (arm, row) in enumerate(_rows(traffic, num_minutes * PER_MINUTE, Damage())):
        window = window.observe(guardrails, "canary" if arm else "control", row, now=float(second))
    return window, traffic, guardrails


def seconds_to_alarm(seed: int, damage: Damage, *, before: int = 60, longest: int = 4 * 3600) -> int | None:
    """Return the seconds from the damage to the alarm after so many healthy minutes; None: none in time."""
    window, traffic, guardrails = watched(seed, before)
    began = before * PER_MINUTE
    for second, (arm, row) in enumerate(_rows(traffic, longest, damage), began + 1):
        window = window.observe(guardrails, "canary" if arm else "control", row, now=float(second))
        look = second % 5 == 0 if second - began < 900 else second % 60 == 0
        if look and outcome_of(guardrails, window.at(second), share=SHARE, levels=LEVELS)[0] == "fail":
            return second - began
    return None


def _rows(traffic: Traffic, number: int, damage: Damage) -> Iterator[tuple[bool, dict[str, float]]]:
    canary, values = traffic.batch(number, SHARE, damage)
    for i in range(number):
        row = {name: float(column[i]) for name, column in values.items() if not np.isnan(column[i])}
        yield bool(canary[i]), row


def alarms(peaks: Sequence[float]) -> int:
    return sum(peak >= needed() for peak in peaks)
