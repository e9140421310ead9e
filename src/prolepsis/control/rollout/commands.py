"""`prolepsis rollout` and `prolepsis shadow`: the rollouts of a running server, and what speculation would gain."""

import inspect
from typing import Annotated

import typer

from prolepsis.core.terminal.admin import REASON, Verb, add_verbs, argument, command, parameter
from prolepsis.core.terminal.output import command_group

_ROLLOUT_ID = argument("rollout_id", "as `rollout list` shows it", "ID")
_FORCE = parameter("force", Annotated[bool, typer.Option("--force", help="without evidence")], False)
_VERDICT = {
    "verdict.guardrails": (
        *("guardrail=name", "outcome", "dry_run", "estimate", "lower", "upper", "allowed"),
        *("canary=num_canary", "control=num_control"),
    ),
    "events": ("at", "event=kind", "stage", "reason"),
}


def _steer(name: str, help_text: str, *more: inspect.Parameter) -> Verb:
    parameters = (_ROLLOUT_ID, *more, REASON)
    return Verb(name, f"POST /admin/rollouts/{{rollout_id}}/{name}", help_text, parameters, _VERDICT)


rollout = add_verbs(
    command_group("Show and control the rollouts of a running server."),
    [
        Verb(
            "list",
            "GET /admin/rollouts",
            "List the rollouts of the policy in use.",
            columns={
                "rollouts": (
                    *("id", "phase", "stage", "share", "counted by=unit", "canary=num_canary", "control=num_control"),
                    *("verdict=verdict.outcome", "reason=verdict.reason"),
                )
            },
        ),
        Verb(
            "show",
            "GET /admin/rollouts/{rollout_id}",
            "Show one rollout: its stage, the verdict of its guardrails, and its events.",
            (_ROLLOUT_ID,),
            _VERDICT,
        ),
        _steer("start", "Start a rollout, or start it again after it was rolled back."),
        _steer("hold", "Stop the clock of the stage and all promotion; harm still rolls the rollout back."),
        _steer("resume", "Continue a rollout that is held."),
        _steer("promote", "Go to the next stage now, if the present one has passed.", _FORCE),
        _steer("rollback", "Roll back: new requests at once, requests in flight with their next step."),
    ],
)

shadow = command(
    Verb(
        "shadow",
        "GET /admin/shadow",
        "Show the expected acceptance and speedup, estimated from requests in shadow mode, and what that costs.",
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
)
