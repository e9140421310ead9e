"""Rollouts: stages and shares, evidence with its bounds, what a judgement waits for, and an operator's commands."""

from collections.abc import Mapping
from dataclasses import dataclass

from prolepsis.control.rollout.machine import ALLOWED, Command, Phase
from prolepsis.control.rollout.other_rules import other_rules
from prolepsis.control.rollout.runtime import RolloutView
from prolepsis.control.statistics.guardrail import GuardrailResult
from prolepsis.control.traffic.feature import TrafficReply
from prolepsis.control.web.drawing import IntervalPlaces, interval
from prolepsis.control.web.page import FeaturePages, Page, PageRoute, Visit
from prolepsis.core.terminal.resource import Act

STATUS: Mapping[Phase, tuple[str, str]] = {
    "off": ("off", "not started"),
    "running": ("ok", "running"),
    "gate": ("info", "waits for approval"),
    "held": ("warn", "held"),
    "on": ("ok", "on"),
    "rolled_back": ("bad", "rolled back"),
}
BUTTONS: Mapping[Command, tuple[str, str]] = {
    "start": ("Start", "Its first stage begins: a share of the requests gets the rule's mode."),
    "resume": ("Resume", "The stage continues."),
    "promote": ("Promote", "The next stage begins."),
    "hold": ("Hold", "The stage's clock and all promotion stop; the canary keeps its share, and harm still ends it."),
    "rollback": ("Roll back", "The canary ends: what is in flight goes on plainly, new requests as the control's."),
}


@dataclass(frozen=True, slots=True)
class GuardrailView:
    """One guardrail with its numbers and their places in a drawing."""

    result: GuardrailResult
    places: IntervalPlaces


async def _rollout(visit: Visit) -> Page:
    view = await visit.read(RolloutView, "/admin/rollouts/{rollout_id}", rollout_id=visit.names["rollout_id"])
    traffic = await visit.section(TrafficReply, "/admin/traffic")
    values = {
        "one": view,
        "others": [*other_rules(traffic.value.rules, view.rule, view.since)] if traffic.value and view.run else [],
        "status": STATUS,
        "buttons": BUTTONS,
        "offered": [command for command in BUTTONS if view.phase in ALLOWED[command]],
        "evidence": evidence(view),
        "events": (view.events or [])[::-1],
        "may_act": visit.may("POST", "/admin/rollouts/{rollout_id}/{command}"),
    }
    return Page("control/rollout/templates/rollout.html", f"Rollout of {view.rule}", values)


def evidence(view: RolloutView) -> list[GuardrailView]:
    """Return the guardrails of the present stage, those that decide first."""
    results = view.judgement.guardrails if view.judgement else ()
    ordered = sorted(results, key=lambda result: result.dry_run)
    return [GuardrailView(r, interval(r.estimate, r.lower, r.upper, r.allowed)) for r in ordered]


PAGES = FeaturePages(
    (PageRoute("/console/rollouts/{rollout_id}", "One rollout", _rollout),),
    {"rollout": Act(method="POST", path="/admin/rollouts/{rollout_id}/{command}", done="{command}: done.")},
)
