"""Reviews of a day to a quarter: what figures, budgets and changes say, and what to look at, by stated rules."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from prolepsis.control.verdict.verdict import RuleVerdict
from prolepsis.core.config import DAY_S
from prolepsis.core.facts import NO_RULE, rule_of_class
from prolepsis.core.terminal.output import shown_time
from prolepsis.core.traffic_sums import LEAST_REQUESTS as LEAST_SAVED
from prolepsis.core.traffic_sums import TrafficSums
from prolepsis.core.units import figure
from prolepsis.ops.incident.period import Period
from prolepsis.ops.incident.prometheus import Firing
from prolepsis.ops.incident.timeline import Happening, document
from prolepsis.ops.incident.week import WeekFigures

FELL = 0.1  # acceptance that fell by this share of what it was is looked at
LEAST_DRAFT_TOKENS = 500  # draft tokens in each of two weeks, so that they can be compared
LEAST_REQUESTS = 50
FAILED = 0.01  # a larger share of failed requests is looked at
LOW_BUDGET = 0.25
BUSY = 0.7  # of the time that devices are held: more leaves little for a failure or a peak
_WATCHED = {
    "breaker.open": "a breaker opened",
    "rollout.rolled_back": "a rollout was rolled back",
    "rollout.set_back": "a rollout went back to its last stage",
    "replay.structural": "a replay differs from its request",
    "drift.cliff": "acceptance fell off a cliff",
}
_AUDITED: Mapping[str, tuple[str, ...]] = {
    "breakers opened": ("breaker.open", "breaker.forced_open"),
    "speculation was stopped": ("kill.on",),
    "rollbacks": ("rollout.rolled_back", "rollout.set_back", "policy.rolled_back", "learning.rolled_back"),
    "replays that differ": ("replay.structural", "replay.near_tie"),
    "comparisons with plain decoding": ("exact.passed", "exact.failed"),
    "drills": ("drill.run",),
    "changes of the policy": ("policy.applied", "policy.reloaded"),
}
"""Acts of the safety audit of a quarter; each is listed, also where there was none."""
DAYS = {"day": 1, "week": 7, "month": 30, "quarter": 91}
_MONTH, _QUARTER = (DAY_S * DAYS[name] for name in ("month", "quarter"))
LISTED = 60  # changes that are listed, the last ones


@dataclass(frozen=True, slots=True)
class ErrorBudget:
    """Rest of an objective's error budget; 1: all; below 0: it is overspent."""

    objective: str
    remaining: float

    @property
    def left(self) -> str:
        """The rest in words: of a budget that is overspent, how often it was spent."""
        if self.remaining >= 0:
            return share(self.remaining)
        return f"nothing ({figure(1 - self.remaining)} times spent)"


@dataclass(frozen=True, slots=True)
class ReviewFinding:
    """One thing to look at."""

    what: str
    subject: str
    why: str
    owner: str = ""  # who answers for its rule, as the policy says


@dataclass(frozen=True, slots=True)
class SafetyRow:
    """How often something happened in a quarter that safety depends on."""

    what: str
    number: float
    act: str = ""
    who: str = ""
    last_at: float | None = None  # Unix time; None: it is not known, or there was none


@dataclass(frozen=True, slots=True)
class Expected:
    """A sum, as the period before let expect it, as it came, and as the two let expect it of the next period."""

    what: str
    before: float
    came: float

    @property
    def next(self) -> float:
        """By the same change again; no season is known."""
        return max(0.0, 2 * self.came - self.before)

    @property
    def error(self) -> float | None:
        return self.came / self.before - 1.0 if self.before else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    period: Period
    this: WeekFigures
    before: WeekFigures  # figures of the period of the same length before
    happened: Sequence[Happening]
    budgets: Sequence[ErrorBudget] | None  # None: Prometheus was not asked
    alerts: Sequence[Firing] = ()
    swaps: Sequence[Happening] = ()  # exchanges of draft heads, whenever they were; the last is the newest
    verdicts: Mapping[str, RuleVerdict] = field(default_factory=dict)  # the last that were stored, by rule
    owners: Mapping[str, str] = field(default_factory=dict)  # of the policy's rules in use, by name
    counted: Mapping[str, float] | None = None  # by Prometheus, for the safety audit; None: it was not asked

    @property
    def is_monthly(self) -> bool:
        """It is long enough to compare what was expected."""
        return self.period.seconds >= _MONTH

    @property
    def is_quarterly(self) -> bool:
        return self.period.seconds >= _QUARTER

    @property
    def heads(self) -> Mapping[str, Happening]:
        """The last exchange of each place of a draft head."""
        return {row.subject: row for row in self.swaps}

    @property
    def drills(self) -> list[Happening]:
        return [row for row in self.happened if row.what == "drill.run"]

    @property
    def expected(self) -> list[Expected]:
        """Requests, tokens and what the devices cost; nothing where it was not paid for."""
        this, before = self.this.total, self.before.total
        sums = [
            Expected("requests", before.num_requests, this.num_requests),
            Expected("output tokens", before.num_output_tokens, this.num_output_tokens),
        ]
        paid = {spent.currency: spent.amount_paid for spent in self.before.spent}
        for spent in self.this.spent:
            if spent.amount_paid is not None and paid.get(spent.currency) is not None:
                sums.append(Expected(f"paid, {spent.currency}", paid[spent.currency] or 0.0, spent.amount_paid))
        return sums

    @property
    def capacity(self) -> dict[str, float | None]:
        """Share of the time that devices were held in which requests used them: in this period, and before."""
        return {
            name: sum(spent.used_s for spent in figures.spent) / held
            if (held := sum(spent.held_s for spent in figures.spent))
            else None
            for name, figures in (("this", self.this), ("before", self.before))
        }

    @property
    def changes(self) -> list[Happening]:
        return [row for row in self.happened if row.kind in ("change", "rollout", "deployment")]

    @property
    def findings(self) -> list[ReviewFinding]:
        """Findings to look at, the gravest first."""
        found = [*_watched(self.happened), *_over_limits(self), *_worn(self.this, self.before), *_neglected(self)]
        default = self.owners.get(NO_RULE, "")
        return [replace(each, owner=self.owners.get(_rule_of(each.subject), default)) for each in found]

    @property
    def safety(self) -> list[SafetyRow]:
        """The safety audit: acts with who did them, then what Prometheus counted."""
        rows = []
        for what, acts in _AUDITED.items():
            by_act = {act: [row for row in self.happened if row.what == act] for act in acts}
            rows += [
                SafetyRow(what, len(found), act, ", ".join(sorted({row.who for row in found})), found[-1].at)
                for act, found in by_act.items()
                if found
            ] or [SafetyRow(what, 0)]
        return [*rows, *(SafetyRow(what, number) for what, number in (self.counted or {}).items())]


def budgets(values: Iterable[tuple[Mapping[str, str], float]]) -> list[ErrorBudget]:
    """Return the budgets from the recorded series, the smallest first; objectives without events have none."""
    known = [
        ErrorBudget(" ".join(filter(None, (labels.get("sloth_slo", ""), labels.get("tier", "")))), value)
        for labels, value in values
        if math.isfinite(value)
    ]
    return sorted(known, key=lambda budget: budget.remaining)


def _watched(happened: Iterable[Happening]) -> Iterator[ReviewFinding]:
    rows = [row for row in happened if row.what in _WATCHED]
    last = {(row.what, row.subject): row for row in rows}
    numbers = Counter((row.what, row.subject) for row in rows)
    for what, meaning in _WATCHED.items():
        for key, number in numbers.items():
            if key[0] == what:
                details = f", {last[key].details}" if last[key].details else ""
                yield ReviewFinding(meaning, key[1], f"{number} x, last at {shown_time(last[key].at)}{details}")


def _over_limits(review: Review) -> Iterator[ReviewFinding]:
    for budget in review.budgets or ():
        if budget.remaining < LOW_BUDGET:
            what = "an error budget is overspent" if budget.remaining < 0 else "an error budget is nearly spent"
            yield ReviewFinding(what, budget.objective, f"{budget.left} left, less than {share(LOW_BUDGET)}")
    numbers = Counter(alert.name for alert in review.alerts if alert.labels.get("severity") == "page")
    for name, number in numbers.most_common():
        yield ReviewFinding("an alert paged", name, f"{number} x")
    for name, now in review.this.classes.items():
        if now.num_requests >= LEAST_REQUESTS and now.num_failed > FAILED * now.num_requests:
            failed = share(now.num_failed / now.num_requests)
            yield ReviewFinding("requests fail", name, f"{failed} of {now.num_requests:,}, more than {share(FAILED)}")


def _worn(this: WeekFigures, before: WeekFigures) -> Iterator[ReviewFinding]:
    for (traffic_class, proposer), now in this.proposers.items():
        was = before.proposers.get((traffic_class, proposer))
        if was is None or min(now.num_draft_tokens, was.num_draft_tokens) < LEAST_DRAFT_TOKENS:
            continue
        rate, former = now.acceptance_rate or 0.0, was.acceptance_rate or 0.0
        if rate <= (1 - FELL) * former and former:
            why = f"{share(former)} -> {share(rate)}, {share(1 - rate / former)} less than before"
            yield ReviewFinding("acceptance fell", f"{proposer}, {traffic_class}", why)


def _neglected(review: Review) -> Iterator[ReviewFinding]:
    if not review.is_quarterly:
        return
    if not review.drills:
        yield ReviewFinding("no drill was run", "all servers", "of a quarter; `prolepsis drill all`")
    for subject, row in review.heads.items():
        days = (review.period.end.timestamp() - row.at) / DAY_S
        if days > DAYS["quarter"]:
            yield ReviewFinding(
                "a draft head is old", subject, f"exchanged {days:.0f} days ago; see `prolepsis show drift`"
            )
    busy = review.capacity["this"]
    if busy is not None and busy > BUSY:
        why = f"devices are used for {share(busy)} of the time that they are held, more than {share(BUSY)}"
        yield ReviewFinding("capacity is short", "all servers", why)


def _rule_of(subject: str) -> str:
    """Return the rule that a rollout's name begins with, or that a traffic class at the end names."""
    rule, at, _ = subject.partition("@")
    return rule if at else rule_of_class(subject.rpartition(" ")[2])


def saved(sums: TrafficSums | None) -> str:
    """Return what drafts saved of the predicted device time; nothing of few requests."""
    return share(sums.saved if sums is not None and sums.num_requests >= LEAST_SAVED else None)


def share(value: float | None) -> str:
    return "-" if value is None else f"{figure(100 * value)} %"


def page(review: Review) -> str:
    """Return the review as Markdown, what to look at first."""
    filters: dict[str, Callable[..., str]] = {
        "share": share,
        "saved": saved,
        "figure": figure,
        "amount": lambda value, currency: "-" if value is None else f"{figure(value, 4)} {currency}",
        "change": lambda value: "-" if value is None else f"{100 * value:+.0f} %",
    }
    rules = {
        "FAILED": FAILED,
        "FELL": FELL,
        "LEAST_DRAFT_TOKENS": LEAST_DRAFT_TOKENS,
        "LEAST_REQUESTS": LEAST_REQUESTS,
        "LISTED": LISTED,
        "LOW_BUDGET": LOW_BUDGET,
    }
    return document("review.md", filters, review=review, rules=rules)
