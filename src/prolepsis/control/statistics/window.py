"""Evidence of a moving window, in spans of time: recent requests decide, however good earlier ones were.

A bet begins with each minute, and the evidence is the sum of their wealths (`means.Contrast.log_evidence`). While the
canary is no worse than allowed, the sum less the number of bets begun is a supermartingale. So it reaches a bound c
within n minutes with probability at most n / c, for any number of looks (optional stopping). Bets on old spans lost on
good service and weigh nothing in the sum; bets that begin after a change lose nothing to it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from prolepsis.control.statistics.arms import Arm, ArmScores
from prolepsis.control.statistics.guardrail import Guardrail
from prolepsis.control.statistics.judge import StageEvidence
from prolepsis.core.json_value import JsonValue

MINUTE_S = 60.0
WINDOW_MINUTES = 1440
LEVEL_DAYS = 30  # the time for which levels hold
NUM_STARTS = LEVEL_DAYS * 1440
_FINE = 4  # spans of each size, about: the older, the longer


@dataclass(frozen=True, slots=True)
class WindowScores:
    """Scores on one guardrail by span."""

    spans: tuple[ArmScores, ...]
    total: ArmScores


@dataclass(frozen=True, slots=True)
class MinuteSpan(JsonValue):
    """The requests that finished in some minutes."""

    first: int  # minute in which it begins, in minutes of Unix time; a multiple of `num_minutes`
    num_minutes: int  # a power of two
    evidence: StageEvidence


@dataclass(frozen=True, slots=True)
class WindowEvidence(JsonValue):
    """Spans of the last day: of a minute at first, merged in pairs as they age, so that there are about fifty.

    Spans begin at multiples of their length, so the spans of replicas can be added. Spans that were merged away are
    starts of bets that are left out of the sum, which keeps its bound.
    """

    rollout_id: str
    stage: int
    run: int = 0
    spans: tuple[MinuteSpan, ...] = field(kw_only=True)  # oldest first
    weights: str = field(default="", kw_only=True)  # as in `StageEvidence`

    def belongs_to(self, rollout_id: str, run: int, stage: int) -> bool:
        return (self.rollout_id, self.run, self.stage) == (rollout_id, run, stage)

    @property
    def num_canary(self) -> int:
        return sum(span.evidence.num_canary for span in self.spans)

    @property
    def num_control(self) -> int:
        return sum(span.evidence.num_control for span in self.spans)

    @property
    def consecutive_errors(self) -> int:
        return self.spans[-1].evidence.consecutive_errors if self.spans else 0

    @property
    def sizes(self) -> Sequence[tuple[int, int]]:
        return [(span.evidence.num_canary, span.evidence.num_control) for span in self.spans]

    def scores_of(self, guardrail: Guardrail) -> WindowScores:
        spans = tuple(span.evidence.scores_of(guardrail) for span in self.spans) or (guardrail.empty(),)
        return WindowScores(spans, sum(spans, guardrail.empty()))

    def observe(
        self,
        guardrails: Sequence[Guardrail],
        arm: Arm,
        values: Mapping[str, float],
        *,
        now: float,  # Unix time in seconds
        late: bool = False,
    ) -> Self:
        """Return the evidence with a request that finished now; `late`: it is counted already, these values are not."""
        minute = int(now // MINUTE_S)
        window = self
        if not self.spans or self.spans[-1].first < minute:
            span = MinuteSpan(minute, 1, StageEvidence(self.rollout_id, self.stage, run=self.run))
            window = replace(self, spans=(*self.spans, span)).at(60.0 * minute)
        last = window.spans[-1]
        observe = last.evidence.observe_more if late else last.evidence.observe
        return replace(window, spans=(*window.spans[:-1], replace(last, evidence=observe(guardrails, arm, values))))

    def at(self, now: float) -> Self:
        """Return the evidence as it is kept at `now` (Unix time in seconds): without old spans, others merged."""
        minute = int(now // MINUTE_S)
        kept: dict[int, MinuteSpan] = {}
        for span in self.spans:
            if span.first + span.num_minutes <= minute - WINDOW_MINUTES:
                continue
            length = max(span.num_minutes, _length_at(span.first, minute))
            first = span.first // length * length
            before = kept.get(first)
            evidence = before.evidence + span.evidence if before else span.evidence
            kept[first] = MinuteSpan(first, length, evidence)
        return replace(self, spans=tuple(kept[first] for first in sorted(kept)))

    def __add__(self, other: Self) -> Self:
        """Return the evidence of both replicas; call `at` afterwards."""
        assert other.belongs_to(self.rollout_id, self.run, self.stage), "evidence of one stage is added"
        return replace(self, spans=(*self.spans, *other.spans))


def _length_at(minute: int, now: int) -> int:
    """Return the length of the span with `minute`: a span is doubled once the doubled one ended `_FINE` lengths ago."""
    length = 1
    while (minute // (2 * length) + 1 + _FINE) * 2 * length <= now:
        length *= 2
    return length
