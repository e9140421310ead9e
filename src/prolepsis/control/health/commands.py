"""Suspended proposers of a running server, and changes of acceptance: `prolepsis show` and `prolepsis breaker`."""

from typing import get_args

from prolepsis.control.health.breaker import OperatorState
from prolepsis.core.terminal.output import command_group
from prolepsis.core.terminal.resource import REASON, Act, Resource, add_commands, argument

HEALTH = "/admin/health"
_KEY = {"proposer": "{proposer}", "traffic_class": "{traffic_class}"}

WHY = {
    "acceptance": "first tokens were accepted too rarely",
    "cost": "drafts cost more than they brought",
    "errors": "several calls in a row failed",
    "late": "several calls in a row took too long",
    "overdue": "a call did not come back in time",
    "shared": "it opened on another replica",
    "cliff": "acceptance fell to nearly nothing",
    "operator": "an operator set it",
}
"""Why a breaker is open, or in the state that it was set to."""
BREAKERS = Resource(
    title="Breakers",
    path=HEALTH,
    part="breakers",
    help="List the breakers: state, reason and tenants, acceptance of first tokens, tokens spent and gained.",
    command="breakers",
    columns={
        "breakers": (
            *("traffic_class", "proposer", "state > tenants > reason > by > probed_in_s"),
            *("acceptance=acceptance:share", "judged drafts=judged", "spent", "gained"),
        )
    },
    empty="No proposer has drafted yet, so there is nothing to judge.",
    words={"reason": WHY},
    acts={
        "breaker": Act(
            method="PUT",
            path=HEALTH,
            command="set",
            help="Set one breaker manually. It keeps the state, also after a restart, until it is set to closed.",
            parameters=(
                argument("proposer", "as `show breakers` names it"),
                argument("traffic_class", "as `show breakers` names it", "TRAFFIC_CLASS"),
                argument("state", "forced_open, forced_closed or metrics_only; closed: automatic again"),
                REASON,
            ),
            done="Breaker of {proposer} in {traffic_class}: {state}.",
            button="Set",
            row=_KEY,
            choices={"state": get_args(OperatorState)},
            in_force="state",
        )
    },
)
DRIFT = Resource(
    title="Drift",
    path=HEALTH,
    part="drift",
    help="Show acceptance and the state of drift detection for each proposer and traffic class.",
    command="drift",
    columns={
        "streams": (
            *("proposer > version", "traffic_class", "status"),
            *(
                "overall=acceptance:share > recent=recent_acceptance:share",
                "judged drafts=num_judged > seconds=seconds:s",
            ),
            *("excess estimate=overestimated:share > distance=total_variation", "benefit=benefit:share"),
        )
    },
    hint="One stream for each proposer in each traffic class, since its version was deployed. Drift is a slow decline"
    " of acceptance; a cliff is sudden and may mean damage. Excess estimate: how much the proposer's own estimates are"
    " above what is right. Distance: of its guesses from the target's, 0 to 1. Benefit: share of the answers' tokens.",
    empty="No draft was judged yet, so there is no stream.",
    links={"proposer": "/console/proposers#proposer-{proposer}"},
    acts={
        "drift": Act(
            method="DELETE",
            path=HEALTH,
            command="reset",
            help="Restart the detection for one proposer: after a known change of its traffic, or after an alarm.",
            parameters=(
                argument("proposer", "as `show drift` names it"),
                argument("traffic_class", "as `show drift` names it", "TRAFFIC_CLASS"),
            ),
            done="The stream of {proposer} in {traffic_class} starts again.",
            button="Start again",
            row=_KEY,
        )
    },
)
ELIGIBILITY = Resource(
    title="Eligibility",
    path=HEALTH,
    part="eligibility",
    help="Show which traffic classes may verify drafts, and the figures that decide it.",
    command="eligibility",
    columns={
        "conditions": ("traffic_class", "proposers", "condition", "min", "until", "value", "eligible"),
        "figures": ("traffic_class", "proposer", "version", "num_drafts", "acceptance_rate"),
    },
)

breaker = add_commands(
    command_group("Set breakers of a running server by hand, and restart the detection of drift."),
    *(BREAKERS, DRIFT),
    views=False,
)
