"""Simulated counts of an engine: requests that each have an acceptance of their own, read five times a second."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prolepsis.core.stats import TrafficClassCounts

LOOK_S = 0.2
JUDGED_PER_S = 40
"""Judged drafts of one running request a second."""
MEAN_JUDGED = 60
"""Judged drafts of a request; their number is geometric."""
CONCENTRATION = 6.0
"""Of the beta distribution that requests' own acceptance comes from: a deviation of .19 around .5."""


@dataclass
class Traffic:
    """So many requests at a time, one after the other in each place."""

    seed: int
    num_running: int
    acceptance: Callable[[float], float]
    """Mean over requests that begin at a time (s)."""
    said: float | None = None
    """What the proposer says of its first token; None: what is true of the request, give or take a tenth."""
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
                gap += number * (request.said if self.said is None else self.said) - hits
                judged, right, request.left = judged + number, right + hits, request.left - number
            yield (
                now,
                TrafficClassCounts("draft_head", "chat-completions/standard/free/short", 0, judged, right, judged, gap),
            )


@dataclass
class _Running:
    share: float
    left: int
    said: float = 0.0

    def begin(self, chance: random.Random, mean: float) -> None:
        self.share = chance.betavariate(mean * CONCENTRATION, (1.0 - mean) * CONCENTRATION)
        self.said = min(1.0, max(0.0, chance.gauss(self.share, 0.1)))
        self.left = 1 + int(chance.expovariate(1.0 / MEAN_JUDGED))
