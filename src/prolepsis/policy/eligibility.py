"""Decides whether requests of a traffic class may verify drafts, and how long, from the drafts of earlier requests.

Figures belong to what made them: a proposer, the version of its weights, and the traffic class. Older drafts fade. With
two thresholds a class that has become eligible stays so until it falls below the lower one (hysteresis).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from prolepsis.core.stats import ProposerCounts, RequestStats
from prolepsis.core.validation import Number, Part


class Threshold(Part):
    """Bounds of a figure: from `min` on a traffic class becomes eligible, below `until` it no longer is."""

    min: Number
    until: Number | None = None
    """The class stays eligible until the figure is below this; None: `min`."""

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

    acceptance_rate: Threshold | None = None
    """Accepted / drafted tokens."""
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
MIN_DRAFTS = 64
"""Drafts by which eligibility is judged at first."""
HALF_LIFE = 256.0
"""Drafts after which a draft has half its weight."""

LimitReason = Literal[
    "unmeasured",  # too few drafts were seen
    "unmeasured_experts",  # so it is, for a mixture-of-experts target under a rule without terms
    "low_acceptance",
    "no_saving",
    "conservative_start",
]
_LOW: Mapping[str, LimitReason] = {"acceptance_rate": "low_acceptance", "saving_per_million_tokens": "no_saving"}


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits that the drafts seen so far put on one request."""

    reasons: tuple[LimitReason, ...] = ()
    verifies: bool = True
    """False: mode on becomes shadow."""
    num_speculative_tokens: int | None = None


UNLIMITED = Limits()


@dataclass(slots=True)
class DraftFigures:
    """One version of a proposer in one traffic class; weighted sums, except for `num_drafts`."""

    version: str
    num_drafts: int = 0
    drafted: float = 0.0
    accepted: float = 0.0
    saved_s: float = 0.0
    """Device time that the requests saved in which it drafted, over `tokens` output tokens."""
    tokens: float = 0.0

    def add(self, counts: ProposerCounts, saved_s: float, num_tokens: int) -> None:
        """Process one request in which it drafted."""
        kept = 0.5 ** (counts.num_drafts / HALF_LIFE)
        self.num_drafts += counts.num_drafts
        self.drafted = kept * self.drafted + counts.num_draft_tokens
        self.accepted = kept * self.accepted + counts.num_accepted
        self.saved_s = kept * self.saved_s + saved_s
        self.tokens = kept * self.tokens + num_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One condition for one traffic class: whether it holds now, and by which figure."""

    traffic_class: str
    proposers: tuple[str, ...] | None
    """Those of the rules that ask for it; None: all that are loaded."""
    condition: str
    min: float
    until: float
    value: float | None
    """None: too few drafts were seen."""
    eligible: bool


_Asked = tuple[tuple[str, ...] | None, str, float, float]
"""Proposers, name of the condition, and its thresholds: no rule, so an edit elsewhere changes nothing."""
_Condition = tuple[str, _Asked]
"""Traffic class, and the terms to judge it by."""


class Eligibility:
    """The figures of all traffic classes, and which conditions hold. Belongs to one event loop."""

    def __init__(
        self,
        version_of: Callable[[str], str],
        *,
        has_experts: bool = False,
        price_per_s: Callable[[], float | None] = lambda: None,
        start: StartTerms | None = None,
    ) -> None:
        """`version_of` names the weights of a proposer. `has_experts`: the target is a mixture of experts.

        `price_per_s`: of the device, None where its time is not billed, so that no saving is asked for. `start` is the
        start of rules that have none.
        """
        self._version_of = version_of
        self._has_experts = has_experts
        self._price_per_s = price_per_s
        self._start = start
        self._figures: dict[str, dict[str, DraftFigures]] = {}
        self._held: dict[_Condition, Judged] = {}

    @property
    def figures(self) -> Mapping[str, Mapping[str, DraftFigures]]:
        """By traffic class and proposer."""
        return self._figures

    @property
    def judged(self) -> Sequence[Judged]:
        """Every condition that was asked for, as it was judged last."""
        return list(self._held.values())

    def restore(self, figures: Mapping[str, Mapping[str, DraftFigures]], held: Iterable[Judged]) -> None:
        """Process what earlier runs learned of the present weights, where this one has learned less."""
        for traffic_class, by_proposer in figures.items():
            known = self._figures.setdefault(traffic_class, {})
            for name, one in by_proposer.items():
                is_less = name not in known or known[name].num_drafts < one.num_drafts
                if is_less and one.version == self._version_of(name):
                    known[name] = one
        for judged in held:
            if self._of(judged.traffic_class, judged.proposers):
                asked = (judged.proposers, judged.condition, judged.min, judged.until)
                self._held.setdefault((judged.traffic_class, asked), judged)

    def keep_only(self, terms: Iterable[tuple[tuple[str, ...] | None, EligibilityTerms | None]]) -> None:
        """Forget the conditions that none of these terms, with their proposers, asks for."""
        asked = {one for proposers, given in terms for one in self._asked(proposers, given)}
        self._held = {key: one for key, one in self._held.items() if key[1] in asked}

    def _asked(self, proposers: tuple[str, ...] | None, given: EligibilityTerms | None) -> Iterator[_Asked]:
        terms = given or (EXPERTS_TERMS if self._has_experts else None)
        for name in type(terms).model_fields if terms is not None else ():
            threshold = getattr(terms, name)
            if threshold is not None:
                yield proposers, name, threshold.min, threshold.leave

    def add(self, traffic_class: str, stats: RequestStats) -> None:
        """Process a request that has ended, whose drafts were verified where they pay, or compared in shadow."""
        figures = self._current(traffic_class)
        saved_s = _saved_s(stats)
        for counts in (stats.proposers, stats.shadow):
            for name, one in counts.items():
                version = self._version_of(name)
                if one.num_draft_tokens and stats.is_evidence_of(name, version):
                    known = figures.setdefault(name, DraftFigures(version))
                    known.add(one, saved_s, stats.num_output_tokens)

    def limits(
        self,
        traffic_class: str,
        proposers: tuple[str, ...] | None,
        terms: EligibilityTerms | None,
        start: StartTerms | None,
    ) -> tuple[Limits, Sequence[Judged]]:
        """Return what is left of a request's terms, and the conditions that have changed with this look."""
        figures = self._of(traffic_class, proposers)
        asked = terms or (EXPERTS_TERMS if self._has_experts else None)
        reasons: list[LimitReason] = []
        changed: list[Judged] = []
        for name, value, threshold in self._conditions(asked, figures):
            before, after = self._judge((traffic_class, (proposers, name, threshold.min, threshold.leave)), value)
            if after.eligible != (before is not None and before.eligible):
                changed.append(after)
            if not after.eligible:
                unmeasured: LimitReason = "unmeasured" if terms else "unmeasured_experts"
                reasons.append(_LOW[name] if value is not None else unmeasured)
        verifies = not reasons
        start = start or self._start
        is_early = start is not None and sum(one.num_drafts for one in figures) < start.num_drafts
        if verifies and is_early and start is not None:
            return Limits(("conservative_start",), num_speculative_tokens=start.num_speculative_tokens), changed
        return Limits(tuple(dict.fromkeys(reasons)), verifies), changed

    def _conditions(
        self, terms: EligibilityTerms | None, figures: Sequence[DraftFigures]
    ) -> list[tuple[str, float | None, Threshold]]:
        """Return each condition with its figure, None where too few drafts were seen."""
        if terms is None:
            return []
        asked: list[tuple[str, float | None, Threshold]] = []
        is_measured = sum(one.num_drafts for one in figures) >= MIN_DRAFTS
        if terms.acceptance_rate is not None:
            drafted, accepted = sum(one.drafted for one in figures), sum(one.accepted for one in figures)
            asked.append(("acceptance_rate", accepted / drafted if is_measured else None, terms.acceptance_rate))
        price = self._price_per_s()
        if terms.saving_per_million_tokens is not None and price is not None:
            saved_s, tokens = sum(one.saved_s for one in figures), sum(one.tokens for one in figures)
            saving = 1e6 * price * saved_s / tokens if is_measured and tokens else None
            asked.append(("saving_per_million_tokens", saving, terms.saving_per_million_tokens))
        return asked

    def _judge(self, condition: _Condition, value: float | None) -> tuple[Judged | None, Judged]:
        traffic_class, (proposers, name, enter, leave) = condition
        before = self._held.get(condition)
        was = before is not None and before.eligible
        holds = was if value is None else value >= (leave if was else enter)
        after = self._held[condition] = Judged(
            traffic_class=traffic_class,
            proposers=proposers,
            condition=name,
            min=enter,
            until=leave,
            value=value,
            eligible=holds,
        )
        return before, after

    def _of(self, traffic_class: str, proposers: tuple[str, ...] | None) -> Sequence[DraftFigures]:
        figures = self._current(traffic_class)
        return [one for name, one in figures.items() if proposers is None or name in proposers]

    def _current(self, traffic_class: str) -> dict[str, DraftFigures]:
        """Return the figures of a class; those of a proposer whose weights were exchanged go, and what they decided."""
        figures = self._figures.setdefault(traffic_class, {})
        gone = [name for name, one in figures.items() if one.version != self._version_of(name)]
        for name in gone:
            del figures[name]
        if gone:
            self._held = {key: one for key, one in self._held.items() if not _concerns(key, traffic_class, gone)}
        return figures


def _concerns(condition: _Condition, traffic_class: str, gone: Sequence[str]) -> bool:
    of, (proposers, *_) = condition
    return of == traffic_class and (proposers is None or not set(proposers).isdisjoint(gone))


def _saved_s(stats: RequestStats) -> float:
    """Return the device time that the drafts of a request saved, or would have saved if it was in shadow."""
    device, num_tokens = stats.device, stats.num_output_tokens
    if stats.num_drafts or not stats.shadow:
        return device.predicted_plain - device.total if device.predicted_plain else 0.0
    saved = sum(one.num_accepted - one.drafting - one.verifying for one in stats.shadow.values())
    return saved * device.plain / num_tokens if num_tokens else 0.0
