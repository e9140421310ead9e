"""Simulated drift: an engine whose requests each have their own acceptance, and the alarms they raise."""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prolepsis.control.health.drift import DriftAlarm, DriftSettings, DriftStreams, Kind
from prolepsis.control.statistics.change import (
    ALARM,
    BEGIN_EVERY,
    DOUBT,
    FROZEN,
    LEARN,
    NUM_SIZES,
    POINTS,
    bets,
    renewed_after,
)
from prolepsis.core.stats import JudgedDraft, TrafficClassCounts
from prolepsis.engine.drafting.acceptance import FIRST_JUDGED

KEY = ("draft_head", "chat-completions/standard/free/short")
LOOK_S = 0.2
JUDGED_PER_S = 40
"""Judged drafts of one running request a second."""
MEAN_JUDGED = 60
"""Judged drafts of a request; their number is geometric."""
CHANGE_S = 1200.0
"""When acceptance changes, in the simulations that change it."""
CONCENTRATION = 6.0
"""Of the beta distribution that requests' own acceptance comes from: a deviation of .19 around .5."""


@dataclass
class Traffic:
    """So many requests at a time, one after the other in each place."""

    seed: int
    num_running: int
    acceptance: Callable[[float], float]
    """Mean over requests that begin at a time (s)."""
    predicted: float | None = None
    """The proposer's probability for its first token; None: the request's own acceptance, give or take a tenth."""
    corrupted: Callable[[float], bool] = lambda _: False
    """Whether nearly nothing is right, of requests that run already too."""

    def looks(self, seconds: float) -> Iterator[tuple[float, TrafficClassCounts, list[list[JudgedDraft]]]]:
        """Yield time, counts and the first judged drafts of requests that ended, look by look."""
        chance = random.Random(self.seed)
        running = [_Running(0.0, 0) for _ in range(self.num_running)]
        judged = right = 0
        now = 0.0
        while now < seconds:
            now += LOOK_S
            ended: list[list[JudgedDraft]] = []
            for request in running:
                if request.left <= 0:
                    if request.first:
                        ended.append(request.first)
                    request.begin(chance, self.acceptance(now))
                share = 0.02 if self.corrupted(now) else request.share
                for _ in range(min(int(JUDGED_PER_S * LOOK_S), request.left)):
                    hit = chance.random() < share
                    judged, right, request.left = judged + 1, right + hit, request.left - 1
                    if len(request.first) < FIRST_JUDGED:
                        estimate = request.predicted if self.predicted is None else self.predicted
                        request.first.append(JudgedDraft(hit, estimate))
            yield now, TrafficClassCounts(*KEY, num_judged=judged, num_right=right), ended


@dataclass
class _Running:
    share: float
    left: int
    predicted: float = 0.0
    first: list[JudgedDraft] = field(default_factory=list)

    def begin(self, chance: random.Random, mean: float) -> None:
        self.share = chance.betavariate(mean * CONCENTRATION, (1.0 - mean) * CONCENTRATION)
        self.predicted = min(1.0, max(0.0, chance.gauss(self.share, 0.1)))
        self.left, self.first = 1 + int(chance.expovariate(1.0 / MEAN_JUDGED)), []


@dataclass(frozen=True, slots=True)
class Watched:
    """The alarms for one stream."""

    alarms: list[DriftAlarm]
    num_counted: int
    """Judged drafts of requests that counted, from the change on, until the first alarm."""

    def delay_s(self, kind: Kind) -> float | None:
        """Return the seconds from the change to the first alarm of its kind."""
        return next((alarm.at - CHANGE_S for alarm in self.alarms if alarm.kind == kind and alarm.at > CHANGE_S), None)


def watch(traffic: Traffic, seconds: float) -> Watched:
    """Return what is said of `traffic`."""
    streams, alarms, num_counted = DriftStreams(lambda _: "1"), list[DriftAlarm](), 0
    for now, reading, ended in traffic.looks(seconds):
        alarms += streams.observe([reading], now)
        for judged in ended:
            num_counted += len(judged) if now > CHANGE_S and not alarms else 0
            alarms += streams.judge(KEY, judged, now)
    return Watched(alarms, num_counted)


def falls_seen(
    mean: float, after: float | None, *, streams: int, requests: int, change: int, seed: int
) -> list[tuple[int, int]]:
    """Return stream and request of each alarm of drift, of many streams at once: the arithmetic of `MeanWatch`.

    Requests come one a second, with four judged drafts each; the mean of their acceptance has a daily wave of .02 and
    changes to `after` (None: stays) at request number `change`. Rises are learned and are no alarms.
    """
    rng, settings = np.random.default_rng(seed), DriftSettings()
    rows, alarms = np.arange(streams), list[tuple[int, int]]()
    histogram, renew_at = np.zeros((streams, POINTS), np.int64), np.full(streams, LEARN)
    wealth, factors = np.zeros((2, streams, NUM_SIZES)), np.ones((2, streams, NUM_SIZES, POINTS))
    number = np.zeros(streams, np.int64)
    means = lambda at: mean if after is None else np.where(at >= change, after, mean)  # noqa: E731
    for i, score in enumerate(scores(rng, means, streams, requests)):
        point = np.rint((POINTS - 1) * score).astype(np.int64)
        for k in np.nonzero(number >= renew_at)[0]:
            found = bets(histogram[k].tolist(), settings.tolerance)
            for side, rates in enumerate((found.lower, found.higher)):
                factors[side, k] = rates or 0.0
            renew_at[k] = number[k] + renewed_after(int(number[k]))
        ready = number >= LEARN
        counts = (number < FROZEN) & (wealth.sum(axis=2).max(axis=0) < DOUBT * NUM_SIZES)
        histogram[rows, point] += counts
        number += counts
        begun = wealth + ((i + 1) % BEGIN_EVERY == 0)
        wealth = np.where(ready[:, None], begun * factors[:, rows, :, point].swapaxes(0, 1), 0.0)
        lower, higher = wealth.mean(axis=2) >= ALARM
        alarms += [(int(k), i) for k in np.nonzero(lower)[0]]
        changed = lower | higher
        wealth[:, changed], histogram[changed], number[changed], renew_at[changed] = 0.0, 0, 0, LEARN
    return alarms


def scores(
    rng: np.random.Generator, mean: Callable[[NDArray[np.int64]], Any], streams: int, requests: int
) -> Iterator[NDArray[np.float64]]:
    """Yield the scores of all streams, request by request; `mean` gives that of requests by their numbers.

    Each stream begins at a time of day of its own.
    """
    batch, phase = 10_000, 2.0 * math.pi * np.arange(streams) / streams
    for first in range(0, requests, batch):
        number = np.arange(first, min(requests, first + batch))
        wave = 0.02 * np.sin(2.0 * math.pi * number[:, None] / 86_400.0 + phase)  # [requests, streams]
        now = np.broadcast_to(mean(number), len(number))[:, None] + wave
        share = rng.beta(CONCENTRATION * now, CONCENTRATION * (1.0 - now))
        yield from rng.binomial(FIRST_JUDGED, share) / FIRST_JUDGED


def steady(mean: float) -> Callable[[float], float]:
    return lambda _: mean


def falling(before: float, after: float) -> Callable[[float], float]:
    return lambda now: before if now < CHANGE_S else after
