"""Eligibility while serving: it limits requests, follows the policy in use, and reports what it gained and lost."""

from collections.abc import Callable
from dataclasses import asdict, dataclass

import structlog
from prometheus_client import CollectorRegistry

from prolepsis.control.health.eligibility import (
    MIN_DRAFTS,
    Conditions,
    DraftLimits,
    Eligibility,
    EligibilityTerms,
    Judged,
    StartTerms,
)
from prolepsis.core.audit_event import SERVER, AuditEvent, Emit, discard
from prolepsis.core.telemetry.declare import counter
from prolepsis.core.traffic_sums import ratio

log = structlog.get_logger(__name__)


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


class EligibilityRuntime:
    """Belongs to one event loop."""

    def __init__(
        self,
        eligibility: Eligibility,
        registry: CollectorRegistry,
        *,
        emit: Emit = discard,
        conditions: Callable[[], tuple[str, Conditions]] = lambda: ("", ()),
    ) -> None:
        """`conditions`: version of the policy in use, empty without one, and the conditions that count."""
        self.eligibility = eligibility
        self._conditions = conditions
        self._version = ""  # version of the policy whose conditions are judged
        self._emit = emit
        by = ("traffic_class", "condition", "eligible")
        text = "Traffic classes that became eligible, or lost it"
        self._changes = counter(registry, "eligibility_changes", text, *by)

    def shown(self) -> EligibilityReply:
        """All conditions and figures, for people."""
        self.follow_policy()
        figures = [
            DraftFiguresReply(
                traffic_class=traffic_class,
                proposer=proposer,
                version=version,
                num_drafts=one.num_drafts,
                acceptance_rate=ratio(one.accepted, one.drafted),
                saved_s_per_million_tokens=ratio(1e6 * one.saved_s, one.tokens),
            )
            for (proposer, traffic_class, version), one in self.eligibility.figures.items()
        ]
        figures.sort(key=lambda one: (one.traffic_class, one.proposer))
        return EligibilityReply(MIN_DRAFTS, list(self.eligibility.judged), figures)

    def follow_policy(self, *, again: bool = False) -> None:
        """Forget the conditions of an earlier policy that the present one does not have; `again`: also without one."""
        version, conditions = self._conditions()
        if version and (again or version != self._version):
            self._version = version
            self.eligibility.keep_only(conditions)

    def limits(
        self,
        traffic_class: str,
        proposers: tuple[str, ...] | None,
        terms: EligibilityTerms | None,
        start: StartTerms | None,
    ) -> DraftLimits:
        """Return what is left of a request's terms, which would verify drafts."""
        found, changed = self.eligibility.limits(traffic_class, proposers, terms, start)
        for judged in changed:
            write = log.info if judged.eligible else log.warning
            write("eligibility_changed", **asdict(judged))
            self._changes.labels(judged.traffic_class, judged.condition, str(judged.eligible).lower()).inc()
            action = f"eligibility.{'gained' if judged.eligible else 'lost'}"
            self._emit(AuditEvent(actor=SERVER, action=action, subject=judged.traffic_class, after=asdict(judged)))
        return found
