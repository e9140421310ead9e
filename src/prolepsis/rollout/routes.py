"""Shapes of /admin/rollouts, and how a rollout is shown in them."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, cast, get_args

from fastapi import Path
from pydantic import Field

from prolepsis.api.room import Room
from prolepsis.core.errors import RolloutNotFound
from prolepsis.rollout.machine import Command, Kind, Phase, RolloutEvent, canary_share
from prolepsis.rollout.runtime import Rollouts, RolloutView
from prolepsis.statistics.guardrail import GuardrailResult, Outcome
from prolepsis.statistics.judge import Reason, Verdict
from prolepsis.web.body_reader import read_body
from prolepsis.web.caller import SignedIn
from prolepsis.web.errors import RequestRefused
from prolepsis.web.fields import Body, Reply
from prolepsis.web.routes import OPERATORS, READERS, Route, Routes


class RolloutCommandBody(Body):
    """Why; it stands in the event."""

    reason: Annotated[str, Field(max_length=500)] = ""


class GuardrailReply(Reply):
    """Estimate and bounds as docs/why/verdicts.md says; `harm` and `safety` are logarithms of evidence (base e)."""

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
    holdout: float
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


RolloutCommandName = Literal["start", "hold", "resume", "promote", "rollback"]


def shown(view: RolloutView) -> RolloutReply:
    state, settings = view.state, view.settings
    return RolloutReply(
        id=state.rollout_id,
        rule=view.rule,
        policy_version=state.policy_version,
        phase=state.phase,
        stage=settings.stages[state.stage].name,
        stage_number=state.stage,
        num_stages=len(settings.stages),
        share=canary_share(state, settings),
        holdout=settings.holdout,
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
        policy_version=event.policy_version,
        version=event.version,
        verdict=_verdict(event.verdict),
    )


def _verdict(verdict: Verdict | None) -> VerdictReply | None:
    if verdict is None:
        return None
    found = [_guardrail(finding) for finding in verdict.guardrails]
    return VerdictReply(outcome=verdict.outcome, reason=verdict.reason, guardrails=found)


def _guardrail(finding: GuardrailResult) -> GuardrailReply:
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


def rollout_routes(room: Room) -> Sequence[Route]:
    routes = Routes()
    known = get_args(RolloutCommandName)

    @routes.get("/admin/rollouts", roles=READERS, summary="Rollouts of the policy in use")
    async def rollouts() -> RolloutListReply:
        views = [] if room.policies is None else await room.policies.rollouts.views()
        return RolloutListReply(rollouts=[shown(view) for view in views])

    @routes.get("/admin/rollouts/{rollout_id}", roles=READERS, summary="One rollout and its events")
    async def rollout(rollout_id: str) -> RolloutHistoryReply:
        held = _rollouts(room)
        view = await held.view(rollout_id)
        return shown_with(view, await held.events(rollout_id))

    @routes.post(
        "/admin/rollouts/{rollout_id}/{command}",
        roles=OPERATORS,
        summary="Start, hold, resume, promote or roll back",
        errors=(409, 504),
    )
    async def command(
        rollout_id: str,
        command: Annotated[str, Path(json_schema_extra={"enum": list(known)})],
        body: Annotated[RolloutCommandBody, read_body(RolloutCommandBody)],
        caller: SignedIn,
    ) -> RolloutReply:
        if command not in known:
            message = f"command is {command[:64]!r}; allowed: {', '.join(known)}"
            raise RequestRefused(message, code="unknown_command", param="command", status=404)
        who = caller.key_id or "the developer"
        reason = f"by {who}: {body.reason}" if body.reason else f"by {who}"
        view = await _rollouts(room).command(rollout_id, cast(Command, command), reason)
        return shown(view)

    return routes.all


def _rollouts(room: Room) -> Rollouts:
    if room.policies is None:
        message = "there are no rollouts, as this server has no policy: neither `serve --policy` nor a store with one"
        raise RolloutNotFound(message, param="rollout_id")
    return room.policies.rollouts
