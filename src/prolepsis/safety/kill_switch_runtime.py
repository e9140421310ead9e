"""The kill switch while serving: it follows its file and the flag, and operators turn it over HTTP."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated

import structlog
from prometheus_client import CollectorRegistry
from pydantic import Field

from prolepsis.core.audit_event import SERVER, AuditEvent, Emit, discard
from prolepsis.core.errors import ConfigError
from prolepsis.core.facts import FlagDecision
from prolepsis.core.files import JsonFile
from prolepsis.core.kill_scope import EVERYTHING, check_scope
from prolepsis.safety.kill_switch import KilledScope, KillState, KillStatus
from prolepsis.telemetry.declare import gauge
from prolepsis.web.body_reader import read_body
from prolepsis.web.caller import SignedIn
from prolepsis.web.feature import Feature
from prolepsis.web.fields import Body
from prolepsis.web.routes import OPERATORS, WATCHERS, Route, Routes

FLAG = "flag"
"""The actor where the flag turns the switch."""

log = structlog.get_logger(__name__)


class KillSwitch(Feature):
    """Calls `kill` with all scopes that are stopped, whenever they change. Belongs to one event loop."""

    name = "kill_switch"
    period_s = 0.2
    ticks_before_serving = True

    def __init__(
        self,
        file: JsonFile[KillState],
        kill: Callable[[frozenset[str]], None],
        registry: CollectorRegistry,
        *,
        emit: Emit = discard,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.status = KillStatus()
        self.routes = kill_routes(self)
        self._file = file
        self._kill = kill
        self._emit = emit
        self._now = now
        self._killed = gauge(registry, "speculation_killed", "1 while the kill switch is on, by source", "source")
        self._scopes = gauge(registry, "speculation_killed_scopes", "Scopes that the kill switch stops one by one")
        self._read(at_start=True)

    async def tick(self) -> None:
        """Follow the file if it changed."""
        if self._file.changed():
            self._read(at_start=False)

    def turn(self, *, on: bool, by: str, reason: str, scope: str = EVERYTHING) -> None:
        """Turn the operator's switch of a scope at once; the status says if the state could not be saved.

        Raises `InvalidParameter` if too many scopes are stopped.
        """
        before = self.status
        state = before.operator.turned(KilledScope(scope=scope, by=by, reason=reason, at=self._now()), on=on)
        self._become(KillStatus(operator=state, flag=before.flag))
        try:
            self._file.write(state)
        except ConfigError as error:
            log.error("kill_switch_not_saved", error=str(error))
            self.status = self.status.model_copy(update={"not_saved": str(error)})
        self._record(before, on=on, actor=by, subject="" if scope == EVERYTHING else scope)

    def follow(self, flag: FlagDecision) -> None:
        """Follow the flag; an evaluation that failed changes nothing."""
        if flag.error:
            return
        before = self.status
        self._become(before.model_copy(update={"flag": flag}))
        if flag.value != (before.flag is not None and before.flag.value):
            self._record(before, on=flag.value, actor=FLAG, subject=flag.key)

    def _read(self, *, at_start: bool) -> None:
        """Take over the file's state. A file that is damaged at the start counts as on, because it may have been."""
        before = self.status
        try:
            operator, fault = self._file.read(), None
        except ConfigError as error:
            fault = str(error)
            log.error("kill_file_unusable", error=fault)
            unknown = KillState(on=True, reason=fault[:1024], at=self._now())
            operator = unknown if at_start else before.operator
        self._become(KillStatus(operator=operator, flag=before.flag, fault=fault))
        if operator.killed if at_start else operator != before.operator:
            on = operator.on or bool(operator.killed - before.operator.killed)
            self._record(before, on=on, actor=operator.last_by or SERVER, subject=str(self._file.path))

    def _record(self, before: KillStatus, *, on: bool, actor: str, subject: str = "") -> None:
        """Record an act; `subject` is the file or the flag that it came by, empty for a request."""
        shown = [status.model_dump(mode="json") for status in (before, self.status)]
        action = "kill.on" if on else "kill.off"
        self._emit(AuditEvent(actor=actor, action=action, subject=subject, before=shown[0], after=shown[1]))

    def _become(self, status: KillStatus) -> None:
        before, self.status = self.status, status
        for source in ("operator", "flag"):
            self._killed.labels(source).set(source in status.sources)
        self._scopes.set(len(status.operator.scopes))
        if status.killed == before.killed:
            return
        self._kill(frozenset(status.killed))
        for scope in sorted({*status.killed} ^ {*before.killed}):
            on = scope in status.killed
            (log.warning if on else log.info)("kill_switch", on=on, **status.explained(scope))


class KillBody(Body):
    """The new state of the operator's switch."""

    on: bool
    reason: Annotated[str, Field(max_length=1024)] = ""
    scope: Annotated[str, Field(max_length=300)] = EVERYTHING
    """everything, or route:, rule:, tenant:, traffic_class: or proposer: and a name."""


def kill_routes(switch: KillSwitch) -> Sequence[Route]:
    """Return the routes that show and turn the kill switch."""
    routes = Routes()

    @routes.get("/admin/kill", roles=WATCHERS, summary="The kill switch: what it stops, and by which sources")
    async def kill_status() -> KillStatus:
        return switch.status

    @routes.put("/admin/kill", roles=OPERATORS, summary="Turn the operator's kill switch, for one scope or all")
    async def kill(body: Annotated[KillBody, read_body(KillBody)], caller: SignedIn) -> KillStatus:
        check_scope(body.scope)
        switch.turn(on=body.on, by=caller.actor, reason=body.reason, scope=body.scope)
        return switch.status

    return routes.all
