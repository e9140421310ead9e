"""Figures of a period from the store: volume, acceptance, savings, failures and cost. No tenant, no text."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, Connection, case, func, select

from prolepsis.control.store.tables import cost_periods, request_records
from prolepsis.core.ended import FAILED
from prolepsis.core.facts import NO_RULE
from prolepsis.core.traffic_sums import Drafted, TrafficSums, ratio
from prolepsis.ops.incident.period import Period

NO_CLASS = "no class"
_BATCH = 1000


@dataclass(slots=True)
class Traffic(TrafficSums):
    """Requests that ended; device seconds are of those whose time without drafts is predicted."""

    num_failed: int = 0


@dataclass(frozen=True, slots=True)
class Spent:
    """Cost of the devices of all servers in one currency; empty: without prices."""

    currency: str
    held_s: float
    used_s: float
    num_output_tokens: int
    amount_paid: float | None
    amount_used: float | None


@dataclass(frozen=True, slots=True)
class VerifierUse:
    """Device seconds of the requests of a rule, and what of them drafts took."""

    device_s: float
    verify_s: float
    lost_s: float  # making and verifying draft tokens that were rejected

    @property
    def verify_share(self) -> float | None:
        return ratio(self.verify_s, self.device_s)

    @property
    def lost_share(self) -> float | None:
        return ratio(self.lost_s, self.device_s)


@dataclass(frozen=True, slots=True)
class WeekFigures:
    """Everything about one period."""

    classes: Mapping[str, Traffic] = field(default_factory=dict)
    proposers: Mapping[tuple[str, str], Drafted] = field(default_factory=dict)  # by traffic class and proposer
    errors: Mapping[str, int] = field(default_factory=dict)
    """Failed requests by the code of the error; `aborted`: by the server."""
    spent: tuple[Spent, ...] = ()
    verifier: Mapping[str, VerifierUse] = field(default_factory=dict)  # by rule, the most device time first

    @property
    def total(self) -> Traffic:
        """All classes together."""
        names = Traffic.__dataclass_fields__
        return Traffic(**{name: sum(getattr(traffic, name) for traffic in self.classes.values()) for name in names})


def figures(connection: Connection, period: Period) -> WeekFigures:
    """Return the figures of requests that ended in a period."""
    of = request_records.c
    here = (of.ended_at >= period.start.timestamp()) & (of.ended_at < period.end.timestamp())
    why = func.coalesce(of.error, of.terminal)
    errors = select(why, func.count()).where(here, of.terminal.in_(FAILED)).group_by(why)
    return WeekFigures(
        classes=_classes(connection, here),
        proposers=_proposers(connection, here),
        errors={row[0]: row[1] for row in connection.execute(errors)},
        spent=_spent(connection, period),
        verifier=_verifier(connection, here),
    )


def _verifier(connection: Connection, here: Any) -> dict[str, VerifierUse]:
    of, rule = request_records.c, func.coalesce(request_records.c.policy_rule, NO_RULE)
    sums = [func.coalesce(func.sum(column), 0.0) for column in (_device(), of.device_verify_s, of.correction_s)]
    query = select(rule, *sums).where(here).group_by(rule).order_by(sums[0].desc(), rule)
    return {name: VerifierUse(*seconds) for name, *seconds in connection.execute(query)}


def _device() -> ColumnElement[float]:
    of = request_records.c
    return sum((of[f"device_{kind}_s"] for kind in ("plain", "verify", "propose", "host")), of.device_prefill_s)


def _classes(connection: Connection, here: Any) -> dict[str, Traffic]:
    of = request_records.c
    sums = (
        func.count(),
        func.sum(case((of.terminal.in_(FAILED), 1), else_=0)),
        *(func.sum(of[name]) for name in ("num_output_tokens", "num_draft_tokens", "num_accepted")),
        func.sum(case((of.predicted_plain_s > 0, _device()), else_=0.0)),
        func.coalesce(func.sum(of.predicted_plain_s), 0.0),
    )
    rows = connection.execute(select(of.traffic_class, *sums).where(here).group_by(of.traffic_class))
    classes = {}
    for name, *counts, device_s, plain_s in rows:
        number, failed, tokens, drafted, accepted = map(int, counts)  # PostgreSQL sums whole numbers to decimals
        classes[name or NO_CLASS] = Traffic(
            num_requests=number,
            num_failed=failed,
            num_output_tokens=tokens,
            num_draft_tokens=drafted,
            num_accepted=accepted,
            device_s=device_s or 0.0,
            predicted_plain_s=plain_s,
        )
    return classes


def _proposers(connection: Connection, here: Any) -> dict[tuple[str, str], Drafted]:
    of, drafted, accepted = request_records.c, Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    query = select(of.traffic_class, of.proposers).where(here, of.num_drafts > 0)
    for traffic_class, counts in connection.execute(query).yield_per(_BATCH):
        for proposer, count in counts.items():
            key = (traffic_class or NO_CLASS, proposer)
            drafted[key] += count["num_draft_tokens"]
            accepted[key] += count["num_accepted"]
    return {key: Drafted(number, accepted[key]) for key, number in drafted.items()}


def _spent(connection: Connection, period: Period) -> tuple[Spent, ...]:
    of = cost_periods.c
    here = (of.ended_at >= period.start.timestamp()) & (of.ended_at < period.end.timestamp())
    names = ("held_s", "used_s", "num_output_tokens", "amount_paid", "amount_used")
    query = select(of.currency, *(func.sum(of[name]) for name in names)).where(here).group_by(of.currency)
    return tuple(Spent(row[0] or "", row[1], row[2], int(row[3]), row[4], row[5]) for row in connection.execute(query))
