"""What decides how a request speculates, put together: policy, rollouts, flags, kill switch, breakers and drift."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from prolepsis.control.controls import feature as controls
from prolepsis.control.controls.effective_plan import EffectivePlan
from prolepsis.control.controls.feature import OperatorControls
from prolepsis.control.controls.known_scopes import KnownScopes
from prolepsis.control.cost import runtime as cost
from prolepsis.control.health import feature as health
from prolepsis.control.health.feature import HealthFeature
from prolepsis.control.policy import feature as policy
from prolepsis.control.policy.decision import Conflict, Decision, SpeculationRequest
from prolepsis.control.policy.runtime import Policies, limits_by
from prolepsis.control.rollout import feature as rollout
from prolepsis.control.rollout.runtime import Rollouts
from prolepsis.control.verdict.feature import VerdictFeature
from prolepsis.control.web.context import Context
from prolepsis.control.web.feature import Feature
from prolepsis.core.engine_client import EngineClient
from prolepsis.core.facts import RequestFacts, traffic_class_of
from prolepsis.server.front.keys import Keys
from prolepsis.server.known import KNOWN
from prolepsis.server.sources import Sources

_ROUTES = tuple(KNOWN.route or ())
_NAMED_ROUTES = tuple(traffic_class_of(RequestFacts(route=route)).partition("/")[0] for route in _ROUTES)
"""Routes as traffic classes name them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationControl:
    """Decides on requests, learns from their ends, and changes the engine's plan."""

    plan: EffectivePlan
    controls: OperatorControls
    costs: cost.CostFeature
    policies: Policies
    rollouts: Rollouts
    health: HealthFeature
    verdicts: VerdictFeature
    loaded: Callable[[], Collection[str]]
    """Proposers of the engine."""

    @property
    def features(self) -> Sequence[Feature]:
        """All of them; the controls come first, as the others follow them."""
        return (*self.controls.features, self.costs, self.policies, self.rollouts, self.health, self.verdicts)

    async def decision(self, requested: SpeculationRequest, facts: RequestFacts) -> Decision | Conflict:
        flags, names = self.controls.flags, self.policies.flag_names
        evaluated = await flags.named(names, facts) if names else ()
        decision = self.policies.decide(requested, facts, evaluated, limits_by(self.health.eligibility))
        if isinstance(decision, Conflict):
            return decision
        if decision.choice.proposers and set(decision.choice.proposers).isdisjoint(self.loaded()):
            decision = decision.turned_off("no_proposer")
        flag = await flags.enabled(facts)
        return decision if flag is None else decision.under_flag(flag)


def speculation_control(context: Context, sources: Sources) -> SpeculationControl:
    plan = controls.effective_plan(context)
    rollouts = rollout.feature(context)
    costs = cost.feature(context, sources.prices)
    policies = policy.feature(
        context,
        rollouts,
        sources.policy,
        KNOWN,
        flags=sources.flags is not None,
        bills_time=costs.billed_per_second is not None,
    )
    operators = controls.feature(
        context,
        plan,
        flags=sources.flags,
        flags_of_policy=lambda: policies.flag_names,
        known=known_scopes(context.client, sources.keys, policies),
    )
    proposers = health.feature(
        context,
        plan,
        operators.controls,
        price_per_s=lambda: costs.billed_per_second,
        conditions=lambda: policies.conditions,
    )
    verdicts = VerdictFeature(
        context.registry,
        context.database,
        rules=lambda: policies.rule_modes,
        standings=rollouts.standings,
        compared=costs.overall,
        against=proposers.against,
        killed=lambda: operators.kill_switch.status.killed,
        report=costs.pilot,
        emit=context.emit,
        now=context.wall,
    )
    rollouts.verdict_of = verdicts.of
    return SpeculationControl(
        plan=plan,
        controls=operators,
        costs=costs,
        policies=policies,
        rollouts=rollouts,
        health=proposers,
        verdicts=verdicts,
        loaded=lambda: context.client.info.proposers,
    )


def known_scopes(client: EngineClient, keys: Keys, policies: Policies) -> KnownScopes:
    return KnownScopes(
        names={
            "route": lambda: _ROUTES,
            "rule": lambda: policies.rule_modes,
            "tenant": lambda: keys.tenants,
            "traffic_class": lambda: {f"{named}/{tier}" for named in _NAMED_ROUTES for tier in keys.tiers},
            "proposer": lambda: client.info.proposers,
        }
    )
