"""Decides whether requests of a traffic class may verify drafts, and how long, by the drafts of earlier ones. Pure.

Figures belong to what made them: a proposer, the version of its weights, and the traffic class. Older drafts fade. With
two thresholds a class that has become eligible stays so until it falls below the lower one (hysteresis).
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Self

from pydantic import Field, model_validator

from prolepsis.core.ended import RequestEnded
from prolepsis.core.json_value import JsonValue
from prolepsis.core.reasons import LimitReason
from prolepsis.core.stats import ProposerCounts, RequestStats
from prolepsis.core.traffic_sums import ratio
from prolepsis.core.validation import Number, Part


class Threshold(Part):
    """Bounds of a figure: from `min` on a traffic class becomes eligible, below `until` it no longer is."""

    min: Number
    until: Number | None = None  # the class stays eligible until the figure is below this; None: `min`

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.leave > self.min:
            raise ValueError(f"allowed: until of at most min, which is {self.min:g}")
        return self

    @property
    def leave(self) -> float:
        return self.min if self.until is None else self.until


class EligibilityTerms(Part):
    """Conditions on the drafts of a traffic class, before they are verified and while they are."""

    acceptance_rate: Threshold | None = None  # accepted / drafted tokens
    saving_per_million_tokens: Threshold | None = None
    """Device time that drafts save, at the price in use, in the currency of the price book."""

    @model_validator(mode="after")
    def _meant(self) -> Self:
        rate = self.acceptance_rate
        if rate is None and self.saving_per_million_tokens is None:
            raise ValueError("allowed: acceptance_rate, saving_per_million_tokens, or both")
        if rate is not None and not 0.0 <= rate.leave <= rate.min <= 1.0:
            raise ValueError("allowed: an acceptance_rate of 0 to 1")
        return self


class StartTerms(Part):
    """Short drafts until some were seen."""

    num_speculative_tokens: Annotated[int, Field(ge=1)] = 4
    num_drafts: Annotated[int, Field(ge=1)] = 64
    """Drafts of the traffic class that are needed, verified or compared in shadow."""


EXPERTS_TERMS = EligibilityTerms(acceptance_rate=Threshold(min=0.5, until=0.4))
"""Default terms for mixture-of-experts targets: each draft token may load further experts."""
MIN_DRAFTS = 64  # drafts by which eligibility is judged at first
HALF_LIFE = 256.0  # drafts after which a draft has half its weight

_RATE, _SAVING = "acceptance_rate", "saving_per_million_tokens"
_LOW: Mapping[str, LimitReason] = {_RATE: "low_acceptance", _SAVING: "no_saving"}


@dataclass(frozen=True, slots=True)
class DraftLimits:
    """Limits that the drafts seen so far put on one request."""

    reasons: tuple[LimitReason, ...] = ()
    verifies: bool = True  # False: mode on becomes shadow
    num_speculative_tokens: int | None = None


UNLIMITED = DraftLimits()


@dataclass(slots=True)
class DraftFigures(JsonValue):
    """One version of a proposer in one traffic class; weighted sums, except for `num_drafts`."""

    num_drafts: int
    drafted: float = 0.0
    accepted: float = 0.0
    saved_s: float = 0.0  # device time that the requests saved in which it drafted, over `tokens` output tokens
    tokens: float = 0.0

    def add(self, counts: ProposerCounts, saved_s: float, num_tokens: int) -> None:
        """Process one request in which it drafted."""
        kept = 0.5 ** (counts.num_drafts / HALF_LIFE)
        self.num_drafts += counts.num_drafts
        self.drafted = kept * self.drafted + counts.num_draft_tokens
        self.accepted = kept * self.accepted + counts.num_accepted
        self.saved_s = kept * self.saved_s + saved_s
        self.tokens = kept * self.tokens + num_tokens


Place = tuple[str, str, str]  # proposer, traffic class and version


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged(JsonValue):
    """One condition for one traffic class: whether it holds now, and by which figure."""

    traffic_class: str
    proposers: tuple[str, ...] | None  # proposers of the rules that ask for it; None: all that are loaded
    condition: str
    min: float
    until: float
    value: float | None  # None: too few drafts were seen
    eligible: bool
    versions: Mapping[str, str]  # versions of the proposers by whose drafts it was judged

    @property
    def asked(self) -> "Asked":
        """What is judged. It names no rule, so an edit elsewhere in a policy changes nothing."""
        return self.proposers, self.condition, self.min, self.until


Asked = tuple[tuple[str, ...] | None, str, float, float]  # proposers, name of the condition, and its thresholds
Conditions = Iterable[tuple[tuple[str, ...] | None, EligibilityTerms | None]]
"""Proposers and terms of the rules of a policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftFiguresReply:
    """Recent drafts of one proposer in one traffic class, verified or compared in shadow."""

    traffic_class: str
    proposer: str
    version: str
    num_drafts: int
    acceptance_rate: float | None
    saved_s_per_million_tokens: float | None  # device seconds


@dataclass(frozen=True, slots=True)
class EligibilityReply:
    min_drafts: int  # drafts by which a condition is judged at first
    conditions: list[Judged]  # those that requests asked for so far
    figures: list[DraftFiguresReply]


class Eligibility:
    """The figures of all traffic classes, and which conditions hold. Belongs to one event loop."""

    def __init__(
        self,
        version_of: Callable[[str], str],
        *,
        has_experts: bool = False,
        price_per_s: Callable[[], float | None] = lambda: None,
        start: StartTerms | None = None,
        conditions: Callable[[], tuple[str, Conditions]] = lambda: ("", ()),
        changed: Callable[[Judged], None] = lambda judged: None,
    ) -> None:
        """`version_of` names the weights of a proposer. `has_experts`: the target is a mixture of experts.

        `price_per_s`: of the device, None where its time is not billed, so that no saving is asked for. `start` is the
        start of rules that have none. `conditions`: version of the policy in use, empty without one, and the conditions
        that count. `changed` is called with a condition that a request finds to hold, or not, other than before.
        """
        self._version_of = version_of
        self._has_experts = has_experts
        self._price_per_s = price_per_s
        self._start = start
        self._conditions = conditions
        self._changed = changed
        self._policy = ""  # version of the policy whose conditions are judged
        self._figures: dict[str, dict[tuple[str, str], DraftFigures]] = {}
        """By traffic class; by proposer and version."""
        self._held: dict[tuple[str, Asked], Judged] = {}

    @property
    def figures(self) -> Mapping[Place, DraftFigures]:
        """The figures of the versions in use."""
        return {place: figures for place, figures in self.learned().items() if place[2] == self._version_of(place[0])}

    def shown(self) -> EligibilityReply:
        """All conditions and figures, for people."""
        self.follow_policy()
        figures = [
            DraftFiguresReply(
                traffic_class=traffic_class,
                proposer=proposer,
                version=version,
                num_drafts=seen.num_drafts,
                acceptance_rate=ratio(seen.accepted, seen.drafted),
                saved_s_per_million_tokens=ratio(1e6 * seen.saved_s, seen.tokens),
            )
            for (proposer, traffic_class, version), seen in self.figures.items()
        ]
        figures.sort(key=lambda reply: (reply.traffic_class, reply.proposer))
        return EligibilityReply(MIN_DRAFTS, list(self.judged), figures)

    @property
    def judged(self) -> Sequence[Judged]:
        """Every condition that was asked for, as it was judged last; none of versions that are no longer in use."""
        return [judged for judged in self._held.values() if self._is_current(judged)]

    def met(self, proposer: str, traffic_class: str) -> bool | None:
        """Return whether a traffic class meets all conditions that concern a proposer; None without one."""
        met = [
            judged.eligible
            for judged in self.judged
            if judged.traffic_class == traffic_class and (judged.proposers is None or proposer in judged.proposers)
        ]
        return all(met) if met else None

    def learned(self) -> Mapping[Place, DraftFigures]:
        """Return copies of the figures of all versions, which a thread may store."""
        return {
            (proposer, traffic_class, version): replace(figures)
            for traffic_class, known in self._figures.items()
            for (proposer, version), figures in known.items()
        }

    def restore(self, figures: Mapping[Place, DraftFigures], held: Iterable[Judged]) -> None:
        """Process what earlier runs learned, where this one has learned less."""
        for (proposer, traffic_class, version), earlier in figures.items():
            known = self._figures.setdefault(traffic_class, {})
            if known.get((proposer, version), DraftFigures(0)).num_drafts < earlier.num_drafts:
                known[proposer, version] = earlier
        self._held = {(judged.traffic_class, judged.asked): judged for judged in held} | self._held

    def follow_policy(self, *, again: bool = False) -> None:
        """Forget the conditions of an earlier policy that the present one does not have; `again`: also without one."""
        version, conditions = self._conditions()
        if version and (again or version != self._policy):
            self._policy = version
            current = {
                (proposers, name, threshold.min, threshold.leave)
                for proposers, terms in conditions
                for name, threshold in self._thresholds(terms)
            }
            self._held = {key: judged for key, judged in self._held.items() if key[1] in current}

    def see(self, ended: RequestEnded) -> None:
        """Process a request that has ended, unless an operator had its drafts verified at any cost."""
        for prompt in ended.prompts:
            if prompt.answer in ("complete", "cut") and prompt.request.speculation.mode != "always":
                self.add(prompt.request.traffic_class, prompt.stats)

    def add(self, traffic_class: str, stats: RequestStats) -> None:
        """Process a prompt's drafts, which were verified where they pay, or compared in shadow."""
        known, saved = self._figures.setdefault(traffic_class, {}), saved_s(stats)
        for counts in (stats.proposers, stats.shadow):
            for name, of_proposer in counts.items():
                version = self._version_of(name)
                if of_proposer.num_draft_tokens and stats.is_evidence_of(name, version):
                    figures = known.setdefault((name, version), DraftFigures(0))
                    figures.add(of_proposer, saved, stats.num_output_tokens)

    def limits(
        self,
        traffic_class: str,
        proposers: tuple[str, ...] | None,
        terms: EligibilityTerms | None,
        start: StartTerms | None,
    ) -> DraftLimits:
        """Return what is left of the terms of a request that would verify drafts."""
        figures = self._current(traffic_class, proposers)
        reasons: list[LimitReason] = []
        for name, threshold in self._thresholds(terms):
            if name == _SAVING and self._price_per_s() is None:
                continue
            value = self._value(name, figures.values())
            condition = (proposers, name, threshold.min, threshold.leave)
            was, judged = self._judge(traffic_class, condition, value, figures)
            if judged.eligible != was:
                self._changed(judged)
            if not judged.eligible:
                unmeasured: LimitReason = "unmeasured" if terms else "unmeasured_experts"
                reasons.append(_LOW[name] if value is not None else unmeasured)
        start = start or self._start
        is_early = start is not None and sum(seen.num_drafts for seen in figures.values()) < start.num_drafts
        if not reasons and is_early and start is not None:
            return DraftLimits(("conservative_start",), num_speculative_tokens=start.num_speculative_tokens)
        return DraftLimits(tuple(dict.fromkeys(reasons)), verifies=not reasons)

    def _thresholds(self, given: EligibilityTerms | None) -> Iterator[tuple[str, Threshold]]:
        terms = given or (EXPERTS_TERMS if self._has_experts else None)
        for name in type(terms).model_fields if terms is not None else ():
            threshold = getattr(terms, name)
            if threshold is not None:
                yield name, threshold

    def _value(self, name: str, figures: Collection[DraftFigures]) -> float | None:
        """Return the figure of a condition, None where too few drafts were seen."""
        if sum(seen.num_drafts for seen in figures) < MIN_DRAFTS:
            return None
        if name == _RATE:
            return sum(seen.accepted for seen in figures) / sum(seen.drafted for seen in figures)
        price, tokens = self._price_per_s() or 0.0, sum(seen.tokens for seen in figures)
        return 1e6 * price * sum(seen.saved_s for seen in figures) / tokens if tokens else None

    def _judge(
        self, traffic_class: str, condition: Asked, value: float | None, figures: Iterable[str]
    ) -> tuple[bool, Judged]:
        """Return whether a condition held before, and how it is judged now."""
        proposers, name, enter, leave = condition
        before = self._held.get((traffic_class, condition))
        was = before is not None and before.eligible and self._is_current(before)
        judged = self._held[traffic_class, condition] = Judged(
            traffic_class=traffic_class,
            proposers=proposers,
            condition=name,
            min=enter,
            until=leave,
            value=value,
            eligible=was if value is None else value >= (leave if was else enter),
            versions={proposer: self._version_of(proposer) for proposer in figures},
        )
        return was, judged

    def _is_current(self, judged: Judged) -> bool:
        return all(self._version_of(proposer) == version for proposer, version in judged.versions.items())

    def _current(self, traffic_class: str, proposers: tuple[str, ...] | None) -> Mapping[str, DraftFigures]:
        return {
            name: figures
            for (name, version), figures in self._figures.get(traffic_class, {}).items()
            if version == self._version_of(name) and (proposers is None or name in proposers)
        }


def saved_s(stats: RequestStats) -> float:
    """Return the device time that the drafts of a request saved, or would have saved if it was in shadow."""
    device, num_tokens = stats.device, stats.num_output_tokens
    if stats.num_drafts or not stats.shadow:
        return device.predicted_plain - device.total if device.predicted_plain else 0.0
    saved = sum(counts.num_accepted - counts.drafting - counts.verifying for counts in stats.shadow.values())
    return saved * device.plain / num_tokens if num_tokens else 0.0
