"""One verdict for each rule of the policy: whether its speculation is kept, and what that rests on. Pure.

A rule pays if the bounds of what it saves lie above 0; they hold at all times at once (`control.statistics.adjusted`),
so that looking every second makes no verdict wrong. What other judges say are readings below it.
"""

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from prolepsis.control.cost.comparison import MIN_REQUESTS, ArmComparison
from prolepsis.core.json_value import computed
from prolepsis.core.reasons import IN_WORDS, EffectiveReason, Judge, VerdictReason
from prolepsis.core.stats import EffectiveMode
from prolepsis.core.traffic_sums import Interval
from prolepsis.core.units import duration

Answer = Literal["keep", "stop", "unknown", "off"]
ANSWERS: dict[Answer, str] = {"keep": "keep", "stop": "stop", "unknown": "not known yet", "off": "off"}
"""Each answer in words."""
CHANGED_BY: dict[Answer, str] = {
    "keep": "bounds that no longer lie above 0, or a guardrail that shows harm",
    "stop": "another head, proposer or rule: each begins with evidence of its own",
    "unknown": "more requests that are compared",
    "off": "an end of what keeps it off",
}
LATEST = 100  # requests of a rule by which it is seen whether it speculates
LITTLE = 0.02
"""A saving below this is not worth what speculation asks of people."""
FIRST_NEED = 150
"""Requests after which most savings of a quarter have bounds above 0 (`benchmarks.live_control`)."""
MOST_NEEDED = 20_000  # more is no plan


@dataclass(frozen=True, slots=True)
class JudgeReading:
    """What one judge says of a rule now."""

    judge: Judge
    says: str
    where: str = ""  # proposer and traffic class


@dataclass(frozen=True, slots=True)
class RolloutStanding:
    """A rule's rollout, as verdicts need it."""

    rollout: str
    is_rolled_back: bool
    harmed: bool  # a guardrail took it back, while this server ran
    guardrails: str  # what they say of the present stage; empty: nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleReadings:
    rule: str
    rollout: str = ""  # empty: the rule has none in the policy in use
    compared: ArmComparison | None = None  # requests of the newest stage of that rollout
    harmed: bool = False  # a guardrail failed, and the rollout was taken back
    off: EffectiveReason | None = None  # why none of its latest requests speculated; None: one did, or none came
    compared_per_s: float | None = None  # requests that are compared, lately
    predicted: float | None = None
    """The saving by the prediction of plain decoding: no verdict rests on it."""
    others: Sequence[JudgeReading] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleVerdict:
    """The verdict on one rule."""

    rule: str
    rollout: str
    answer: Answer
    reason: VerdictReason
    saved: Interval  # share of device time, against control requests: what the verdict rests on
    num_canary: int
    num_control: int
    needs: int | None  # about so many more requests that are compared; null: none would help, or too many
    needs_s: float | None  # about so long, with requests as they come; null: not known
    since: float = 0.0  # Unix time at which answer and reason became these
    predicted: float | None = None  # share of device time by the prediction of plain decoding
    readings: list[JudgeReading] = field(default_factory=list)

    @computed
    def verdict(self) -> str:
        """Answer and reason in words: the same wherever the verdict is shown."""
        return f"{ANSWERS[self.answer]}: {IN_WORDS[self.reason]}"

    @computed
    def rests_on(self) -> str:
        """The figures in words."""
        if self.answer == "unknown":
            parts = [self._counts()] if self.reason != "no_control" else []
            if self.saved.estimate is not None:
                parts.insert(0, _times(self.saved))
            if self.needs is not None:
                at = f", some {duration(self.needs_s)} at this traffic" if self.needs_s is not None else ""
                parts.append(f"needs about {self.needs:,} more{at}")
            elif self.reason == "chance":
                parts.append(f"needs more than {MOST_NEEDED:,}")
            if self.reason == "no_control":
                parts.append("`prolepsis pilot start` draws some")
                if self.predicted is not None:
                    parts.append(f"by prediction it saves {self.predicted:.0%} of device time")
            return "; ".join(parts)
        return f"{_times(self.saved)}, {self._counts()}" if self.saved.estimate is not None else ""

    @computed
    def changed_by(self) -> str:
        return "a rollout of the rule" if self.reason == "no_control" else CHANGED_BY[self.answer]

    def _counts(self) -> str:
        return f"{self.num_canary:,} canary and {self.num_control:,} control requests"


def judge_rule(known: RuleReadings) -> RuleVerdict:
    """Return the verdict by the readings, of no time yet (`RuleVerdict.since`)."""
    group, saved = known.compared, known.compared.saved if known.compared is not None else Interval(None)
    answer, reason = _answer(known, saved)
    needs = more_requests(group) if answer == "unknown" and reason != "no_control" else None
    return RuleVerdict(
        rule=known.rule,
        rollout=known.rollout,
        answer=answer,
        reason=reason,
        saved=saved,
        num_canary=group.num_canary if group is not None else 0,
        num_control=group.num_control if group is not None else 0,
        needs=needs,
        needs_s=needs / known.compared_per_s if needs is not None and known.compared_per_s else None,
        predicted=known.predicted,
        readings=list(known.others),
    )


def _answer(known: RuleReadings, saved: Interval) -> tuple[Answer, VerdictReason]:
    if known.harmed and known.off != "killed":
        return "stop", "harmed"
    if known.off is not None:
        return "off", known.off
    if not known.rollout:
        return "unknown", "no_control"
    group = known.compared
    if group is None or min(group.num_canary, group.num_control) < MIN_REQUESTS:
        return "unknown", "few"
    lower, upper = (value if value is not None else side for value, side in ((saved.lower, -1.0), (saved.upper, 1.0)))
    if lower > 0.0:
        return "keep", "pays"
    return ("stop", "costs_more" if upper < 0.0 else "brings_little") if upper < LITTLE else ("unknown", "chance")


def more_requests(group: ArmComparison | None) -> int | None:
    """Return about how many more requests decide, if they are like those before; None: more than `MOST_NEEDED`.

    The width of bounds falls with the root of the number of requests. They have to leave out 0, or all that is worth
    having: of the two the nearer.
    """
    if group is None:
        return FIRST_NEED
    number, saved = group.num_canary + group.num_control, group.saved
    if saved.estimate is None or saved.lower is None or saved.upper is None:
        small = min(group.num_canary, group.num_control)
        missing = (MIN_REQUESTS - small) * number / small if 0 < small < MIN_REQUESTS else 0.0
        return max(math.ceil(missing), FIRST_NEED - number, MIN_REQUESTS)
    below, above = saved.estimate - saved.lower, saved.upper - saved.estimate
    ratios = [
        *([below / saved.estimate] if saved.estimate > 0.0 else []),
        *([above / (LITTLE - saved.estimate)] if saved.estimate < LITTLE else []),
    ]
    needed = math.ceil(number * (max(1.0, min(ratios)) ** 2 - 1.0))
    return max(1, needed) if needed <= MOST_NEEDED else None


def _times(saved: Interval) -> str:
    """Return a saving as a speedup with its bounds."""
    estimate, lower, upper = (
        None if value is None or value >= 1.0 else f"{1.0 / (1.0 - value):.2f}"
        for value in (saved.estimate, saved.lower, saved.upper)
    )
    if lower is None or upper is None:
        return f"{estimate}x{f' ({lower} or more)' if lower else f' (up to {upper})' if upper else ''}"
    return f"{estimate}x ({lower} to {upper})"


def followed(verdict: RuleVerdict, before: RuleVerdict | None, now: float) -> RuleVerdict:
    """Return a verdict with the time since when it holds, given the one before; `now` is Unix time in seconds."""
    is_same = before is not None and (before.answer, before.reason) == (verdict.answer, verdict.reason)
    return replace(verdict, since=before.since if before is not None and is_same else now)


class LatestModes:
    """What became of the latest requests of each rule; those that a rollout keeps plain are left out."""

    def __init__(self) -> None:
        self._modes: dict[str, deque[EffectiveMode]] = {}

    def observe(self, rule: str, mode: EffectiveMode) -> None:
        self._modes.setdefault(rule, deque(maxlen=LATEST)).append(mode)

    def keep(self, rules: Sequence[str]) -> None:
        """Forget the requests of all other rules."""
        self._modes = {rule: modes for rule, modes in self._modes.items() if rule in rules}

    def off(self, rule: str) -> EffectiveReason | None:
        """Return why no request speculates, the most frequent reason; None: one did, or none came."""
        modes = self._modes.get(rule, ())
        if not modes or any(mode.mode == "on" for mode in modes):
            return None
        return Counter(mode.reason for mode in modes).most_common(1)[0][0]
