"""Shapes of /admin/rollouts, and how a rollout is shown in them."""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field

from prolepsis.control.rollouts.events import Kind, RolloutEvent
from prolepsis.control.rollouts.state import Phase, canary_share
from prolepsis.control.verdicts.guardrail import Finding, Outcome
from prolepsis.control.verdicts.judge import Reason, Verdict
from prolepsis.server.fields import Body
from prolepsis.server.replies import Reply
from prolepsis.server.rollouts import RolloutView


class RolloutCommandBody(Body):
    """Why; it stands in the event."""

    reason: Annotated[str, Field(max_length=500)] = ""


class GuardrailReply(Reply):
    """Estimate and bounds as docs/verdicts.md says; `harm` and `safety` are logarithms of evidence (base e)."""

    name: str
    outcome: Outcome
    dry_run: bool
    estimate: float
    lower: float
    upper: float
    allowed: float
    num_canary: int
    num_control: int
    harm: float
    safety: float


class VerdictReply(Reply):
    outcome: Outcome
    reason: Reason
    guardrails: list[GuardrailReply]


class RolloutReply(Reply):
    id: str
    rule: str
    policy_version: str
    phase: Phase
    stage: str
    """Its name; the last one once the rollout is on."""
    stage_number: int
    num_stages: int
    share: float
    """Of requests that get the mode of the rule, 0 to 1."""
    control_share: float
    run: int
    version: int
    since: float
    """When the stage began (Unix time), moved on by the time it was held."""
    num_canary: int
    num_control: int
    """Requests of the stage that finished, on each arm."""
    verdict: VerdictReply | None


class RolloutListReply(Reply):
    rollouts: list[RolloutReply]


class RolloutEventReply(Reply):
    at: float
    kind: Kind
    stage: str
    reason: str
    policy_version: str
    version: int
    verdict: VerdictReply | None


class RolloutHistoryReply(RolloutReply):
    events: list[RolloutEventReply]
    """Oldest first."""


RolloutCommandName = Literal["start", "hold", "resume", "promote", "roll-back"]


def shown(view: RolloutView) -> RolloutReply:
    state, settings = view.state, view.settings
    return RolloutReply(
        id=state.rollout_id,
        rule=view.rule,
        policy_version=state.plan_version,
        phase=state.phase,
        stage=settings.stages[state.stage].name,
        stage_number=state.stage,
        num_stages=len(settings.stages),
        share=canary_share(state, settings),
        control_share=settings.standing_control,
        run=state.run,
        version=state.version,
        since=state.stage_since,
        num_canary=view.num_canary,
        num_control=view.num_control,
        verdict=_verdict(view.verdict),
    )


def shown_with(view: RolloutView, events: Iterable[RolloutEvent]) -> RolloutHistoryReply:
    return RolloutHistoryReply(**shown(view).model_dump(), events=[_event(event) for event in events])


def _event(event: RolloutEvent) -> RolloutEventReply:
    return RolloutEventReply(
        at=event.at,
        kind=event.kind,
        stage=event.stage,
        reason=event.reason,
        policy_version=event.plan_version,
        version=event.version,
        verdict=_verdict(event.verdict),
    )


def _verdict(verdict: Verdict | None) -> VerdictReply | None:
    if verdict is None:
        return None
    found = [_guardrail(finding) for finding in verdict.findings]
    return VerdictReply(outcome=verdict.outcome, reason=verdict.reason, guardrails=found)


def _guardrail(finding: Finding) -> GuardrailReply:
    return GuardrailReply(
        name=finding.name,
        outcome=finding.outcome,
        dry_run=finding.dry_run,
        estimate=finding.estimate,
        lower=finding.lower,
        upper=finding.upper,
        allowed=finding.allowed,
        num_canary=finding.num_canary,
        num_control=finding.num_control,
        harm=finding.harm_evidence,
        safety=finding.safety_evidence,
    )
