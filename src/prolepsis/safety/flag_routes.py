"""/admin/flags: flags that operators set and remove, for all replicas."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated

from anyio import to_thread
from pydantic import Field

from prolepsis.core.audit_event import AuditEvent, Emit
from prolepsis.core.errors import InvalidParameter
from prolepsis.safety.flag_file import DEFAULTS
from prolepsis.safety.kill_switch import Reason, shown_reason
from prolepsis.safety.shared_flags import SetFlag, SharedFlags, made_entry, plain_definition
from prolepsis.web.body_reader import read_body
from prolepsis.web.caller import SignedIn
from prolepsis.web.fields import Body, JsonObject
from prolepsis.web.routes import OPERATORS, WATCHERS, Route, Routes


class FlagBody(Body):
    """A flag to set: for every request to the same value, or by a definition with targeting."""

    flag: Annotated[str, Field(max_length=64)]
    value: bool | None = None
    definition: JsonObject | None = None
    """As a flag file has it: state, variants, defaultVariant, targeting."""
    reason: Reason = ""


class FlagRemovedBody(Body):
    """A flag to leave to the flag file or the provider again."""

    flag: Annotated[str, Field(max_length=64)]
    reason: Reason = ""


@dataclass(frozen=True, slots=True)
class FlagsReply:
    flags: list[SetFlag]
    not_saved: str | None = None
    """Reason why the setting is lost when the server ends."""
    warnings: list[str] = field(default_factory=list)
    """Flags among these that nothing reads."""


def flag_routes(shared: SharedFlags, of_policy: Callable[[], Sequence[str]], emit: Emit) -> Sequence[Route]:
    """Return the routes that show, set and remove flags; `of_policy` returns those that its rules name."""
    routes = Routes()

    def reply(fault: str = "") -> FlagsReply:
        return FlagsReply(shared.all, fault or None, _unread(shared.all, (*DEFAULTS, *of_policy())))

    @routes.get("/admin/flags", roles=WATCHERS, summary="Flags that operators set; not those of file or provider")
    async def flags() -> FlagsReply:
        return reply()

    @routes.put("/admin/flags", roles=OPERATORS, summary="Set a flag for all replicas")
    async def set_flag(body: Annotated[FlagBody, read_body(FlagBody)], caller: SignedIn) -> FlagsReply:
        if (body.value is None) == (body.definition is None):
            raise InvalidParameter("allowed: either value, true or false, or definition", param="value")
        definition = body.definition or plain_definition(value=bool(body.value))
        reason = await to_thread.run_sync(shown_reason, body.reason)
        entry = made_entry(body.flag, definition, caller.actor, reason, datetime.now(UTC))
        before, fault = shared.entry(body.flag), shared.set(entry)
        emit(_event("flags.set", caller.actor, body.flag, before, entry))
        return reply(fault)

    @routes.post("/admin/flags/remove", roles=OPERATORS, summary="Leave a flag to its file or provider again")
    async def remove_flag(body: Annotated[FlagRemovedBody, read_body(FlagRemovedBody)], caller: SignedIn) -> FlagsReply:
        before = shared.entry(body.flag)
        if before is None:
            known = ", ".join(entry.flag for entry in shared.all) or "none is set"
            raise InvalidParameter(f"flag is {body.flag!r}; allowed: {known}", param="flag")
        fault = shared.remove(body.flag)
        emit(_event("flags.removed", caller.actor, body.flag, before, {"reason": body.reason}))
        return reply(fault)

    return routes.all


def _unread(flags: Sequence[SetFlag], read: Sequence[str]) -> list[str]:
    known = ", ".join(dict.fromkeys(read))
    return [
        f"no rule of the policy names the flag {one.flag!r}, so it changes nothing; flags that are read: {known}"
        for one in flags
        if one.flag not in read
    ]


def _event(action: str, actor: str, flag: str, before: SetFlag | None, after: SetFlag | dict[str, str]) -> AuditEvent:
    return AuditEvent(
        actor=actor,
        action=action,
        subject=flag,
        before=None if before is None else before.model_dump(mode="json"),
        after=after.model_dump(mode="json") if isinstance(after, SetFlag) else after,
    )
