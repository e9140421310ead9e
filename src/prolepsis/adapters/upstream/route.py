"""Which pool a request is for, and why: by its choice, the plan in effect and what the engines can do."""

from dataclasses import dataclass
from typing import Literal

from prolepsis.adapters.upstream.capabilities import may_speculate
from prolepsis.core.config import UPSTREAM, UpstreamApi
from prolepsis.core.kill_scope import kill_scope, tenant_scope
from prolepsis.core.plan import SpecPlan
from prolepsis.core.reasons import EffectiveReason
from prolepsis.core.requests import GenerateRequest, SpeculationChoice
from prolepsis.engine.drafting.ledger import DisabledProposers, Origin

PoolName = Literal["speculating", "plain"]


@dataclass(frozen=True, slots=True)
class UpstreamRoute:
    pool: PoolName
    reason: EffectiveReason  # why it is the plain pool; of the other one, `speculating`
    is_stopped: bool = False
    """A safeguard, a rule, its caller or a flag says that it is plain: it stays out of the speculating pool even while
    no other is there."""

    @property
    def pools(self) -> tuple[PoolName, ...]:
        """The pools that may serve it, the first where that is there."""
        if self.pool == "speculating":
            return "speculating", "plain"
        return ("plain",) if self.is_stopped else ("plain", "speculating")


def route_of(
    request: GenerateRequest, plan: SpecPlan, api: UpstreamApi, num_draft_tokens: int, disabled: DisabledProposers
) -> UpstreamRoute:
    """Return the route of a request; `num_draft_tokens` is the most that the speculating pool drafts, 0: there is none.

    A lower ceiling, of the request or of the plan, can only be kept by decoding plainly. `disabled` counts the trials
    that the plan grants.
    """
    reason = _why_off(request, plan) or _why_not_there(request, plan, api, num_draft_tokens, disabled)
    if reason is None:
        return UpstreamRoute("speculating", "speculating")
    is_pinned = _is_pinned(request.speculation, num_draft_tokens)
    return UpstreamRoute("plain", reason, is_pinned or _is_stopped(request, plan, disabled))


def is_replayed(request: GenerateRequest, route: UpstreamRoute, api: UpstreamApi) -> bool:
    """Return whether a request that `route` served plainly may show what drafts would bring: its rule says shadow."""
    is_shadow = request.speculation.mode == "shadow" and route.reason == "plain_only"
    return is_shadow and may_speculate(request, api)


def _is_pinned(choice: SpeculationChoice, num_draft_tokens: int) -> bool:
    """Return whether the drafts of the speculating pool may not be verified for it in any case.

    The control of a rollout, and a traffic class that is not eligible yet, may be served by what speculates: the one
    loses evidence, the other may draft one day. Shadow is for them, or it is a rule's mode. A ceiling of its rule or
    its caller holds; one of a careful start does not.
    """
    ceiling = choice.num_speculative_tokens
    is_capped = ceiling is not None and ceiling < num_draft_tokens
    return (choice.mode in ("off", "shadow") or ceiling == 0 or is_capped) and not choice.may_fall_back


def _is_stopped(request: GenerateRequest, plan: SpecPlan, disabled: DisabledProposers) -> bool:
    """Return whether a safeguard stops it: the kill switch, a rollback or a breaker, also if it is plain already.

    A breaker that found drafts to be too bad does not: they cost time, and change nothing.
    """
    choice = request.speculation
    is_rolled_back = choice.rollout_run in plan.stopped or (not choice.enabled and choice.off_reason == "rolled_back")
    return _is_killed(request, plan) or is_rolled_back or _is_disabled(request, plan, disabled, compared=True)


def _is_killed(request: GenerateRequest, plan: SpecPlan) -> bool:
    return plan.kills(request.kill_scopes | {kill_scope("proposer", UPSTREAM)})


def origin_of(request: GenerateRequest) -> Origin:
    """Return by what the drafts for a request are counted."""
    return request.traffic_class, tenant_scope(request.kill_scopes).removeprefix(kill_scope("tenant", ""))


def _is_disabled(
    request: GenerateRequest, plan: SpecPlan, disabled: DisabledProposers, *, compared: bool = False
) -> bool:
    return not disabled.allowed(origin_of(request), (UPSTREAM,), plan, compared=compared)


def _why_off(request: GenerateRequest, plan: SpecPlan) -> EffectiveReason | None:
    """Return why the request is not to speculate at all."""
    choice = request.speculation
    if choice.enabled and _is_killed(request, plan):
        return "killed"
    if choice.rollout_run in plan.stopped:
        return "rolled_back"
    if not choice.enabled:
        return choice.off_reason
    if choice.num_speculative_tokens == 0:
        return "requested_off"
    return plan.off_reason if plan.ceiling == 0 else None


def _why_not_there(
    request: GenerateRequest, plan: SpecPlan, api: UpstreamApi, num_draft_tokens: int, disabled: DisabledProposers
) -> EffectiveReason | None:
    """Return why the speculating pool is not for the request."""
    choice = request.speculation
    if num_draft_tokens == 0 or any(UPSTREAM not in names for names in (choice.proposers, plan.proposers) if names):
        return "no_draft"
    if _is_disabled(request, plan, disabled):
        return "breaker_open"
    ceilings = (plan.ceiling, choice.num_speculative_tokens)
    is_capped = any(ceiling is not None and ceiling < num_draft_tokens for ceiling in ceilings)
    can = choice.mode != "shadow" and not is_capped and may_speculate(request, api)
    return None if can else "plain_only"
