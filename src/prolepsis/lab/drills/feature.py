"""Drills on a server: the holder of a lease injects a fault, which is taken back also without the holder."""

from collections.abc import Callable, Mapping
from functools import partial
from time import monotonic
from typing import Annotated

from pydantic import Field

from prolepsis.control.store.database import Failing
from prolepsis.control.web.body_reader import read_body
from prolepsis.control.web.caller import Caller, SignedIn
from prolepsis.control.web.context import Context
from prolepsis.control.web.errors import RequestRefused
from prolepsis.control.web.feature import Feature
from prolepsis.control.web.fields import Body, JsonObject
from prolepsis.control.web.routes import ADMINS, Routes
from prolepsis.core.audit_event import SERVER, AuditEvent
from prolepsis.core.config import UPSTREAM
from prolepsis.core.messages import InjectFault
from prolepsis.lab.drills.drills import BY_NAME, NOT_HERE, Drill
from prolepsis.remote.engines import Engines
from prolepsis.server.admission.controller import AdmissionController

LEASE_S = 30.0
"""A drill ends this long after its holder was last heard of."""

_FAILING: Mapping[str, Failing] = {
    "store away": {"read": "a drill", "write": "a drill"},
    "disk full": {"write": "a drill"},
}


class DrillBody(Body):
    """The drill that the caller holds, for some more seconds."""

    drill: Annotated[str, Field(max_length=64)]
    drain: bool = False  # take requests of the caller's key only, until the drill ends
    inject: bool = False  # whether the fault is to be there, as soon as no request of others runs any more
    result: JsonObject | None = None  # ends the drill


class Drills(Feature):
    """Belongs to one event loop."""

    name = "drills"
    period_s = 0.5

    def __init__(self, context: Context, gate: AdmissionController, clock: Callable[[], float] = monotonic) -> None:
        self._context, self._gate, self._clock = context, gate, clock
        self._held: tuple[Drill, str] | None = None
        """The drill and its holder."""
        self._until, self._is_clear = 0.0, False
        self._undo: Callable[[], object] | None = None
        """Takes the fault back."""
        routes = Routes()
        self.routes = routes.all

        @routes.put("/admin/drills", roles=ADMINS, summary="Hold a drill; inject its fault, or end it", errors=(409,))
        async def hold(body: Annotated[DrillBody, read_body(DrillBody)], caller: SignedIn) -> dict[str, int]:
            self.hold(body, caller)
            return {"num_inside": gate.num_inside}

    async def tick(self) -> None:
        """End a drill whose holder is gone."""
        if self._held is not None and self._clock() > self._until:
            self._end("its holder is gone")

    def hold(self, body: DrillBody, caller: Caller) -> None:
        """Begin a drill or hold it on; inject its fault or take it back; raises `RequestRefused` (409)."""
        drill = self._allowed(body, caller)
        self._held, self._until = (drill, caller.actor), self._clock() + LEASE_S
        self._gate.drilled_by = caller.key_id
        self._is_clear |= not self._gate.num_inside
        if body.result is not None:
            self._end("it is over")
            if not str(body.result.get("result")).startswith(NOT_HERE):
                self._emit(drill, caller.actor, "drill.run", body.result)
        elif not body.inject:
            self._take_back("its holder asked")
        elif self._undo is None and self._is_clear:
            self._undo = self._inject(drill)
            self._emit(drill, caller.actor, "drill.fault", {"state": "injected"})

    def _allowed(self, body: DrillBody, caller: Caller) -> Drill:
        if not self._context.config.allow_drills:
            raise _refused("drills_off", "Drills are off; start the server with --allow-drills.")
        if (drill := BY_NAME.get(body.drill)) is None:
            raise _refused("unknown_drill", f"drill is {body.drill!r}; allowed: {', '.join(BY_NAME)}")
        if not self._has(drill.needs):
            raise _refused("not_here", f"{NOT_HERE} the server lacks {drill.needs}")
        if self._held not in (None, (drill, caller.actor)):
            raise _refused("drill_running", "Another drill runs.")
        if not body.drain:
            raise _refused("no_drain", "A drill would touch requests of clients; allowed: drain, which refuses them.")
        return drill

    def _has(self, needs: str) -> bool:
        """Return whether the server has what a drill needs."""
        client, info = self._context.client, self._context.client.info
        drafts = UPSTREAM not in info.proposers and info.proposers
        there: dict[str, object] = {
            "": True,
            "proposers": drafts,
            "a draft head": info.draft_head,
            "replays": drafts and self._context.config.replay_sample,
            "a store": self._context.database.is_kept,
            "restarts of its engine": isinstance(client, Engines) and not client.health().members,
            "several engines": len(client.health().members) > 1,
        }
        return bool(there.get(needs))

    def _inject(self, drill: Drill) -> Callable[[], object]:
        """Inject a fault; return what takes it back."""
        client, database = self._context.client, self._context.database
        match drill.fault:
            case "requests" | "outside":
                return lambda: None
            case "store away" | "disk full":
                database.failing = _FAILING[drill.fault]
                return partial(setattr, database, "failing", {})
            case fault:
                client.send(InjectFault(fault))
                return partial(client.send, InjectFault("none"))

    def _end(self, why: str) -> None:
        self._take_back(why)
        self._held, self._gate.drilled_by, self._is_clear = None, None, False

    def _take_back(self, why: str) -> None:
        if self._undo is not None and self._held is not None:
            self._undo()
            self._undo = None
            self._emit(self._held[0], SERVER, "drill.fault", {"state": "taken back", "why": why})

    def _emit(self, drill: Drill, by: str, action: str, after: JsonObject) -> None:
        self._context.emit(AuditEvent(actor=by, action=action, subject=drill.name, after=after))


def _refused(code: str, message: str) -> RequestRefused:
    return RequestRefused(message, code=code, status=409)
