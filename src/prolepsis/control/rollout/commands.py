"""`prolepsis rollout` and `prolepsis show shadow`: rollouts, and what speculation would gain."""

import inspect
from typing import Annotated

import typer

from prolepsis.core.terminal.output import command_group
from prolepsis.core.terminal.resource import REASON, Act, Resource, add_commands, argument, parameter

_ROLLOUT_ID = argument("rollout_id", "as `rollout show` lists it", "ID")
_ONE = parameter("rollout_id", Annotated[str | None, typer.Argument(metavar="ID", help="default: all")], None)
_FORCE = parameter("force", Annotated[bool, typer.Option("--force", help="without evidence")], False)
_VERDICT = {
    "judgement.guardrails": (
        *("guardrail=name", "outcome", "dry_run", "estimate", "lower", "upper", "allowed"),
        *("canary=num_canary", "control=num_control"),
    ),
    "events": ("at", "event=kind", "stage", "reason"),
}


def _steer(command: str, help_text: str, *more: inspect.Parameter) -> Act:
    path, parameters = f"/admin/rollouts/{{rollout_id}}/{command}", (_ROLLOUT_ID, *more, REASON)
    return Act(method="POST", path=path, command=command, help=help_text, parameters=parameters, columns=_VERDICT)


ROLLOUTS = Resource(
    title="Rollouts",
    path="/admin/rollouts",
    help="The rollouts of the policy in use.",
    columns={
        "rollouts": (
            *("id", "phase > stage", "share > counted by=unit", "canary=num_canary", "control=num_control"),
            *("verdict > stage: outcome=judgement.outcome > reason=judgement.reason", "since"),
        )
    },
    hint="A rollout gives a rule's mode to a growing share of its requests, and takes it back when a guardrail shows"
    " harm. A rule of the policy has one where it has the field `rollout`.",
    empty="No rule of the policy in use is rolled out.",
    links={"id": "/console/rollouts/{id}"},
)
ROLLOUT = Resource(
    path="/admin/rollouts/{rollout_id}",
    help="List the rollouts of the policy in use, or show one: its stage, judgement of its guardrails, its events.",
    command="show",
    parameters=(_ONE,),
    columns={**ROLLOUTS.columns, **_VERDICT},
    acts={
        "start": _steer("start", "Start a rollout, or start it again after it was rolled back."),
        "hold": _steer("hold", "Stop the clock of the stage and all promotion; harm still rolls the rollout back."),
        "resume": _steer("resume", "Continue a rollout that is held."),
        "promote": _steer("promote", "Go to the next stage now, if the present one has passed.", _FORCE),
        "rollback": _steer("rollback", "Roll back: new requests at once, requests in flight with their next step."),
    },
)
SHADOW = Resource(
    title="Shadow",
    path="/admin/shadow",
    help="Show the expected acceptance and speedup, estimated from requests in shadow mode, and what that costs.",
    command="shadow",
    columns={
        "rules": ("rule", "requests=num_requests", "tokens=num_tokens", "expected_speedup", "cost of shadow=cost"),
        "traffic_classes": (
            *("traffic_class", "requests=num_requests", "tokens=num_tokens", "expected_speedup"),
            "cost of shadow=cost",
        ),
        "traffic_classes.proposers": (
            *("traffic_class", "proposer", "drafts=num_drafts", "acceptance_rate", "time saved=saved"),
        ),
    },
)
rollout = add_commands(command_group("Show and control the rollouts of a running server."), ROLLOUT)
