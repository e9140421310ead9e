"""Eligibility while serving: requests that end are counted, and /admin/eligibility shows the figures."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import structlog
from prometheus_client import CollectorRegistry

from prolepsis.core.audit_event import SERVER, AuditEvent, Emit, discard
from prolepsis.core.ended import RequestEnded
from prolepsis.core.traffic_sums import ratio
from prolepsis.policy.eligibility import MIN_DRAFTS, UNLIMITED, DraftFigures, Eligibility, Judged, Limits
from prolepsis.policy.eligibility_store import EligibilityStore, Learned
from prolepsis.policy.model import Policy, Terms, control_terms
from prolepsis.store.learned import Keeper
from prolepsis.telemetry.declare import counter
from prolepsis.web.feature import Feature
from prolepsis.web.routes import READERS, Route, Routes

log = structlog.get_logger(__name__)

LimitsOf = Callable[[Terms, str], Limits]
"""Terms and traffic class -> what is left of the terms."""


def unlimited(terms: Terms, traffic_class: str) -> Limits:
    """Return no limits, for decisions that no evidence exists for."""
    return UNLIMITED


class EligibilityFeature(Feature):
    """Belongs to one event loop."""

    name = "eligibility"
    period_s = 1.0

    def __init__(
        self,
        eligibility: Eligibility,
        registry: CollectorRegistry,
        *,
        emit: Emit = discard,
        policy: Callable[[], Policy | None] = lambda: None,
        store: EligibilityStore | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`policy`: the one in use, whose conditions count.

        `store` keeps what was learned; None: it ends with the server.
        """
        self.eligibility = eligibility
        self._policy = policy
        self._version = ""
        """Version of the policy whose conditions are judged."""
        self._keeper = Keeper(self.name, store, restore=self._take, learned=self._learned, clock=clock)
        self.routes = _routes(self)
        self._emit = emit
        by = ("traffic_class", "condition", "eligible")
        text = "Traffic classes that became eligible, or lost it"
        self._changes = counter(registry, "eligibility_changes", text, *by)

    async def tick(self) -> None:
        """Read what earlier runs learned, and keep what this one does, when that is due."""
        self.follow_policy()
        await self._keeper.tick()

    async def close(self) -> None:
        """Keep what was learned for the next start."""
        await self._keeper.close()

    def _take(self, learned: Learned) -> None:
        self.eligibility.restore(learned.figures, learned.held)
        self._version = ""  # what was restored may hold conditions of an earlier policy
        self.follow_policy()

    def _learned(self) -> Learned:
        held = self.eligibility  # copied: a thread writes it while requests continue
        figures = {of: {name: replace(one) for name, one in known.items()} for of, known in held.figures.items()}
        return Learned(figures, held.judged)

    def follow_policy(self) -> None:
        """Forget the conditions of an earlier policy that the present one does not have."""
        policy = self._policy()
        if policy is None or policy.full_version == self._version:
            return
        self._version = policy.full_version
        terms = [one for _, one in policy.named_terms()]
        terms += [control_terms(one) for one in terms if one.rollout is not None and one.rollout.against is not None]
        self.eligibility.keep_only((one.proposers, one.eligible_while) for one in terms)

    def limits(self, terms: Terms, traffic_class: str) -> Limits:
        """Return what is left of a request's terms, which would verify drafts."""
        if terms.mode != "on":
            return UNLIMITED
        found, changed = self.eligibility.limits(traffic_class, terms.proposers, terms.eligible_while, terms.start)
        for judged in changed:
            self._report(judged)
        return found

    def on_request_end(self, ended: RequestEnded) -> None:
        """Count its drafts, unless an operator had them verified at any cost."""
        for prompt in ended.prompts:
            if prompt.answer in ("complete", "cut") and prompt.request.speculation.mode != "on":
                self.eligibility.add(prompt.request.traffic_class, prompt.stats)

    def _report(self, judged: Judged) -> None:
        write = log.info if judged.eligible else log.warning
        write("eligibility_changed", **asdict(judged))
        self._changes.labels(judged.traffic_class, judged.condition, str(judged.eligible).lower()).inc()
        action = f"eligibility.{'gained' if judged.eligible else 'lost'}"
        self._emit(AuditEvent(actor=SERVER, action=action, subject=judged.traffic_class, after=asdict(judged)))


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftFiguresReply:
    """Recent drafts of one proposer in one traffic class, verified or compared in shadow."""

    traffic_class: str
    proposer: str
    version: str
    num_drafts: int
    acceptance_rate: float | None
    saved_s_per_million_tokens: float | None
    """Device seconds."""


@dataclass(frozen=True, slots=True)
class EligibilityReply:
    min_drafts: int
    """Drafts by which a condition is judged at first."""
    conditions: list[Judged]
    """Those that requests asked for so far."""
    figures: list[DraftFiguresReply]


def _routes(feature: EligibilityFeature) -> Sequence[Route]:
    routes = Routes()
    summary = "Which traffic classes may verify drafts, and the figures that decide it"

    @routes.get("/admin/eligibility", roles=READERS, summary=summary)
    async def eligibility() -> EligibilityReply:
        feature.follow_policy()
        held = feature.eligibility
        figures = [
            _shown(traffic_class, proposer, one)
            for traffic_class, by_proposer in sorted(held.figures.items())
            for proposer, one in sorted(by_proposer.items())
        ]
        return EligibilityReply(MIN_DRAFTS, list(held.judged), figures)

    return routes.all


def _shown(traffic_class: str, proposer: str, one: DraftFigures) -> DraftFiguresReply:
    return DraftFiguresReply(
        traffic_class=traffic_class,
        proposer=proposer,
        version=one.version,
        num_drafts=one.num_drafts,
        acceptance_rate=ratio(one.accepted, one.drafted),
        saved_s_per_million_tokens=ratio(1e6 * one.saved_s, one.tokens),
    )
