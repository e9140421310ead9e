"""Simulated drift: counts of an engine whose requests each have their own acceptance, and the alarms they raise."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prolepsis.core.stats import TrafficClassCounts
from prolepsis.safety.drift import DriftAlarm, DriftStreams, Kind

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

    def readings(self, seconds: float) -> Iterator[tuple[float, TrafficClassCounts]]:
        """Yield time and counts, look by look."""
        chance = random.Random(self.seed)
        running = [_Running(0.0, 0) for _ in range(self.num_running)]
        judged = right = 0
        gap = now = 0.0
        while now < seconds:
            now += LOOK_S
            for request in running:
                if request.left <= 0:
                    request.begin(chance, self.acceptance(now))
                share = 0.02 if self.corrupted(now) else request.share
                number = min(int(JUDGED_PER_S * LOOK_S), request.left)
                hits = sum(chance.random() < share for _ in range(number))
                gap += number * (request.predicted if self.predicted is None else self.predicted) - hits
                judged, right, request.left = judged + number, right + hits, request.left - number
            yield (
                now,
                TrafficClassCounts("draft_head", "chat-completions/standard/free/short", 0, judged, right, judged, gap),
            )


@dataclass
class _Running:
    share: float
    left: int
    predicted: float = 0.0

    def begin(self, chance: random.Random, mean: float) -> None:
        self.share = chance.betavariate(mean * CONCENTRATION, (1.0 - mean) * CONCENTRATION)
        self.predicted = min(1.0, max(0.0, chance.gauss(self.share, 0.1)))
        self.left = 1 + int(chance.expovariate(1.0 / MEAN_JUDGED))


@dataclass(frozen=True, slots=True)
class Watched:
    """The board's alarms for one stream."""

    alarms: list[DriftAlarm]
    num_judged: int

    def delay_s(self, kind: Kind) -> float | None:
        """Return the seconds from the change to the first alarm of its kind."""
        return next((alarm.at - CHANGE_S for alarm in self.alarms if alarm.kind == kind and alarm.at > CHANGE_S), None)


def watch(traffic: Traffic, seconds: float) -> Watched:
    """Return what the board says of `traffic`."""
    board, alarms, num_judged = DriftStreams(), list[DriftAlarm](), 0
    for now, reading in traffic.readings(seconds):
        alarms += board.observe([reading], lambda _: "1", now)
        num_judged = reading.num_judged
    return Watched(alarms, num_judged)


def steady(mean: float) -> Callable[[float], float]:
    return lambda _: mean


def falling(before: float, after: float) -> Callable[[float], float]:
    return lambda now: before if now < CHANGE_S else after
