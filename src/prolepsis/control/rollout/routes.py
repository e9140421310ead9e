"""/admin/rollouts: the rollouts of the policy in use, and an operator's commands."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, cast, get_args

from anyio import to_thread
from fastapi import Path
from pydantic import Field

from prolepsis.control.redaction.values import redacted_text
from prolepsis.control.rollout.commands import ROLLOUT, ROLLOUTS
from prolepsis.control.rollout.machine import Command
from prolepsis.control.rollout.runtime import Rollouts, RolloutView
from prolepsis.control.web.body_reader import read_body
from prolepsis.control.web.caller import SignedIn
from prolepsis.control.web.errors import RequestRefused
from prolepsis.control.web.fields import Body
from prolepsis.control.web.routes import OPERATORS, READERS, Route, Routes

_COMMANDS = get_args(Command)
_CommandName = Annotated[str, Path(json_schema_extra={"enum": list(_COMMANDS)})]


class RolloutCommandBody(Body):
    """The reason for a command, which is recorded with the event, and whether it needs evidence."""

    reason: Annotated[str, Field(max_length=500)] = ""
    force: bool = False  # promote a stage that has not passed


@dataclass(frozen=True, slots=True)
class RolloutsReply:
    rollouts: list[RolloutView]


def rollout_routes(rollouts: Rollouts) -> Sequence[Route]:
    """Return the routes that show and control rollouts."""
    routes = Routes()

    @routes.get(ROLLOUTS.path, roles=READERS, summary=ROLLOUTS.help)
    async def views() -> RolloutsReply:
        return RolloutsReply([*await rollouts.views()])

    routes.get(ROLLOUT.path, roles=READERS, summary=ROLLOUT.help)(rollouts.history)

    @routes.post(
        "/admin/rollouts/{rollout_id}/{command}",
        roles=OPERATORS,
        summary="Start, hold, resume, promote or roll back",
        errors=(409, 504),
    )
    async def command(
        rollout_id: str,
        command: _CommandName,
        body: Annotated[RolloutCommandBody, read_body(RolloutCommandBody)],
        caller: SignedIn,
    ) -> RolloutView:
        if command not in _COMMANDS:
            message = f"command is {command[:64]!r}; allowed: {', '.join(_COMMANDS)}"
            raise RequestRefused(message, code="unknown_command", param="command", status=404)
        if body.force and command != "promote":
            message = f"force is true with {command}; allowed: with promote"
            raise RequestRefused(message, code="invalid_value", param="force")
        operator = caller.key_id or "the developer"
        by = f"by {operator}, by force" if body.force else f"by {operator}"
        why = await to_thread.run_sync(redacted_text, body.reason)  # it may read lists of names
        reason = f"{by}: {why}" if why else by
        what = cast(Command, command)
        return await rollouts.command(rollout_id, what, reason, by=caller.actor, force=body.force)

    return routes.all
