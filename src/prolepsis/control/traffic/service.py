"""What clients got: failures and latencies of the last minutes, held against the objectives that are shipped.

The limits are those at which `monitoring/slos.yaml` pages: a test compares them.
"""

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass

from prolepsis.control.statistics.percentile import percentile
from prolepsis.core.ended import FAILED, End, RequestEnded

LATELY_S, LONG_S = 300.0, 3600.0  # the two windows of a page: it fires while both are bad
BURNS = 14.4  # times the budget
_SPAN_S = 15.0
_LATENCIES = 2048


@dataclass(frozen=True, slots=True)
class Goal:
    """An objective of the service."""

    alert: str  # the page that fires where it is missed
    budget: float  # share of the requests that may miss it
    least: int  # requests in an hour; fewer are no evidence
    limit_s: float
    missed: str  # what it is to miss it, of requests


ANSWERED = Goal("AvailabilityBudgetBurns", 0.001, 50, 0.0, "failed")
FIRST_TOKEN = Goal("FirstTokenBudgetBurns", 0.01, 100, 2.5, "waited more than 2.5 s for the first token")
PER_TOKEN = Goal("TokenLatencyBudgetBurns", 0.01, 100, 0.05, "took more than 50 ms for a token")
UNTIMED = "background"
"""The tier of the lines of batches: they wait for all others, so no time of theirs is late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """An objective that is missed; `burns`: as far as a page takes it, else by few requests."""

    alert: str
    what: str
    tier: str  # Empty: all tiers together
    num_missed: int  # of the last five minutes
    num_requests: int
    burns: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceReply:
    """The last five minutes. Times are a median and a 95th percentile in seconds; null: not known."""

    ends: dict[End, int]  # admitted requests by their end
    num_judged: int  # those that are finished, failed or aborted: others ended by what their clients did
    num_failed: int
    first_token_s: list[float | None]  # from arrival
    per_token_s: list[float | None]  # mean of an answer, after its first token
    total_s: list[float | None]  # from arrival to the end
    missed: list[Missed]


@dataclass(frozen=True, slots=True)
class _Times:
    at: float
    first_token_s: float | None
    per_token_s: float | None
    total_s: float


@dataclass(frozen=True, slots=True)
class _ServiceSpan:
    at: float
    ends: Counter[End]
    judged: Counter[tuple[Goal, str, bool]]  # by objective and tier: requests that missed it, or not


class ServiceLevel:
    """Counts of the last hour; bounded, and lost when the server ends."""

    def __init__(self) -> None:
        self._spans: deque[_ServiceSpan] = deque(maxlen=int(LONG_S / _SPAN_S))
        self._times: deque[_Times] = deque(maxlen=_LATENCIES)

    def ended(self, ended: RequestEnded, now: float) -> None:
        """Count a request that has ended; `now` is Unix time, which may be set back."""
        if not self._spans or now - self._spans[-1].at >= _SPAN_S or now < self._spans[-1].at - LONG_S:
            self._spans.append(_ServiceSpan(now, Counter(), Counter()))
        span = self._spans[-1]
        span.ends[ended.end] += 1
        if ended.end == "finished" or ended.end in FAILED:
            span.judged[ANSWERED, "", ended.end in FAILED] += 1
        for prompt in ended.prompts if ended.about.tier != UNTIMED else ():
            if prompt.answer not in ("complete", "cut"):
                continue
            first_s, per_token_s = prompt.stats.first_token_s, prompt.per_token_s
            if first_s is not None:
                first_s += prompt.waited_s
                span.judged[FIRST_TOKEN, ended.about.tier, first_s > FIRST_TOKEN.limit_s] += 1
            if prompt.end != "finished":  # one that was cut short would count as fast
                continue
            if per_token_s is not None:
                span.judged[PER_TOKEN, ended.about.tier, per_token_s > PER_TOKEN.limit_s] += 1
            self._times.append(_Times(now, first_s, per_token_s, prompt.waited_s + prompt.stats.total_s))

    def reply(self, now: float) -> ServiceReply:
        """Return the figures of the last five minutes, and what of the last hour is missed."""
        times = [timing for timing in self._times if timing.at > now - LATELY_S]
        ends: Counter[End] = sum((span.ends for span in self._since(now - LATELY_S)), Counter())
        return ServiceReply(
            ends=dict(ends),
            num_judged=ends["finished"] + sum(ends[end] for end in FAILED),
            num_failed=sum(ends[end] for end in FAILED),
            first_token_s=_middle_and_most([timing.first_token_s for timing in times]),
            per_token_s=_middle_and_most([timing.per_token_s for timing in times]),
            total_s=_middle_and_most([timing.total_s for timing in times]),
            missed=list(self._missed(now)),
        )

    def _missed(self, now: float) -> Iterator[Missed]:
        lately, long = self._judged(now - LATELY_S), self._judged(now - LONG_S)
        for goal, tier in sorted({(goal, tier) for goal, tier, _ in lately}, key=lambda pair: (pair[0].alert, pair[1])):
            num_missed, num = lately[goal, tier, True], lately[goal, tier, True] + lately[goal, tier, False]
            limit = BURNS * goal.budget
            if num_missed <= limit * num:
                continue
            of_hour = long[goal, tier, True] + long[goal, tier, False]
            burns = of_hour >= goal.least and long[goal, tier, True] > limit * of_hour
            yield Missed(
                alert=goal.alert, what=goal.missed, tier=tier, num_missed=num_missed, num_requests=num, burns=burns
            )

    def _judged(self, since: float) -> Counter[tuple[Goal, str, bool]]:
        return sum((span.judged for span in self._since(since)), Counter())

    def _since(self, at: float) -> list[_ServiceSpan]:
        return [span for span in self._spans if span.at > at]


def _middle_and_most(seconds: list[float | None]) -> list[float | None]:
    known = [value for value in seconds if value is not None]
    return [percentile(known, level) for level in (0.5, 0.95)]
