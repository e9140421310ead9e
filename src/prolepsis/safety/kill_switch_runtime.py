"""The kill switch while serving: it follows its file and the flag, and operators turn it over HTTP."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated, get_args

import structlog
from anyio import to_thread
from prometheus_client import CollectorRegistry
from pydantic import Field, ValidationError

from prolepsis.core.audit_event import SERVER, AuditEvent, Emit, discard
from prolepsis.core.errors import ConfigError, InvalidParameter
from prolepsis.core.facts import FlagDecision
from prolepsis.core.files import JsonFile
from prolepsis.core.kill_scope import EVERYTHING, check_scope
from prolepsis.safety.kill_switch import MAX_SCOPES, KilledScope, KillState, KillStatus, Reason, Source, shown_reason
from prolepsis.safety.known_scopes import ANYTHING, KnownScopes
from prolepsis.safety.shared_controls import SharedControls, Values
from prolepsis.telemetry.declare import gauge
from prolepsis.web.body_reader import read_body
from prolepsis.web.caller import SignedIn
from prolepsis.web.feature import Feature
from prolepsis.web.fields import Body
from prolepsis.web.routes import OPERATORS, WATCHERS, Route, Routes

KIND = "kill"
"""Kind of these controls in the store."""
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
        shared: SharedControls | None = None,
        known: KnownScopes = ANYTHING,
        emit: Emit = discard,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`shared`: operators turn the switch for all replicas; without it, for the servers that share `file`.

        `known`: what has a scope here; a stop of another one is a warning.
        """
        self.status = KillStatus()
        self.routes = kill_routes(self)
        self._file = file
        self._kill = kill
        self._emit = emit
        self._now = now
        self._killed = gauge(registry, "speculation_killed", "1 while the kill switch is on, by source", "source")
        self._scopes = gauge(registry, "speculation_killed_scopes", "Scopes that the kill switch stops one by one")
        self._shared = shared
        self._known = known
        self._read(at_start=True)
        if shared is not None:
            shared.follow(KIND, self._follow_shared)
            if self.status.shared:
                self._record(KillStatus(), on=True, actor=SERVER, subject="store")

    async def tick(self) -> None:
        """Follow the file if it changed."""
        if self._file.changed():
            self._read(at_start=False)

    @property
    def shown(self) -> KillStatus:
        """The status, with warnings of scopes that nothing here has now."""
        found = {scope: self._known.warning(scope) for scope in self.status.killed}
        return self.status.model_copy(update={"warnings": {scope: text for scope, text in found.items() if text}})

    def turn(self, *, on: bool, by: str, reason: str, scope: str = EVERYTHING) -> None:
        """Turn the operator's switch of a scope at once; the status says if the state could not be saved.

        A scope that is stopped already keeps its first reason; the audit log has this one. Raises `InvalidParameter` if
        too many scopes are stopped.
        """
        before = self.status
        entry = KilledScope(scope=scope, by=by, reason=reason, at=self._now())
        faults: list[str] = []
        if not on:
            self.status = before.model_copy(update={"released": entry})
        if self._shared is not None:
            faults.append(self._turn_shared(self._shared, entry, on=on))
        if self._shared is None or (not on and scope in before.operator.killed):
            faults.append(self._turn_file(entry, on=on))
        self.status = self.status.model_copy(update={"not_saved": "; ".join(filter(None, faults)) or None})
        self._record(before, on=on, actor=by, subject="" if scope == EVERYTHING else scope, reason=reason)

    def _turn_shared(self, shared: SharedControls, entry: KilledScope, *, on: bool) -> str:
        others = shared.of(KIND).keys() - {EVERYTHING, entry.scope}
        if on and entry.scope != EVERYTHING and len(others) >= MAX_SCOPES:
            raise InvalidParameter(f"{MAX_SCOPES} scopes are stopped already; allowed: {EVERYTHING}", param="scope")
        first = next((one for one in self.status.shared if one.scope == entry.scope), None)
        return shared.set(KIND, entry.scope, entry.after(first).model_dump_json() if on else None)

    def _turn_file(self, entry: KilledScope, *, on: bool) -> str:
        state = self.status.operator.turned(entry, on=on)
        self._become(self.status.model_copy(update={"operator": state, "fault": None}))
        try:
            self._file.write(state)
        except ConfigError as error:
            log.error("kill_switch_not_saved", error=str(error))
            return str(error)
        return ""

    def _follow_shared(self, values: Values) -> None:
        """Follow what the store says; where that is not known, everything is stopped."""
        entries = [entry for value in values.values() if (entry := _entry(value)) is not None]
        if self._shared_unknown or len(entries) < len(values):
            entries.append(KilledScope(scope=EVERYTHING, reason="what the store says is not known", at=self._now()))
        self._become(self.status.model_copy(update={"shared": tuple(entries)}))

    @property
    def _shared_unknown(self) -> bool:
        return self._shared is not None and self._shared.unknown

    def follow(self, flag: FlagDecision) -> None:
        """Follow the flag; an evaluation that failed changes nothing, unless it says stop."""
        if flag.error and not flag.value:
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
        own = {
            "operator": operator,
            "fault": fault,
            "not_saved": None,
            "released": operator.released or before.released,
        }
        self._become(before.model_copy(update=own))
        if operator.killed if at_start else operator != before.operator:
            on = operator.on or bool(operator.killed - before.operator.killed)
            self._record(before, on=on, actor=operator.last_by or SERVER, subject=str(self._file.path))

    def _record(self, before: KillStatus, *, on: bool, actor: str, subject: str = "", reason: str = "") -> None:
        """Record an act with its reason; `subject` is the scope, or the file or the flag that it came by."""
        was, now = (status.model_dump(mode="json") for status in (before, self.status))
        after = {**now, "reason": reason} if reason else now
        action = "kill.on" if on else "kill.off"
        self._emit(AuditEvent(actor=actor, action=action, subject=subject, before=was, after=after))

    def _become(self, status: KillStatus) -> None:
        before = self.status
        stopped, freed = ({*status.killed} - {*before.killed}), ({*before.killed} - {*status.killed})
        if status.released is not None and status.released.scope in stopped:
            status = status.model_copy(update={"released": None})  # it is stopped again
        self.status = status
        for source in get_args(Source):
            self._killed.labels(source).set(source in status.sources)
        self._scopes.set(len({*status.killed} - {EVERYTHING}))
        if not stopped and not freed:
            return
        self._kill(frozenset(status.killed))
        for scope in sorted(stopped | freed):
            on = scope in stopped
            (log.warning if on else log.info)("kill_switch", on=on, **status.explained(scope))
            if on and (warning := self._known.warning(scope)):
                log.warning("kill_scope_unknown", scope=scope, detail=warning)


def _entry(text: str) -> KilledScope | None:
    """Return an entry of the store; None for one that this version does not know."""
    try:
        return KilledScope.model_validate_json(text)
    except ValidationError:
        return None


class KillBody(Body):
    """The new state of the operator's switch."""

    on: bool
    reason: Reason = ""
    scope: Annotated[str, Field(max_length=300)] = EVERYTHING
    """everything, or route:, rule:, tenant:, traffic_class: or proposer: and a name."""


def kill_routes(switch: KillSwitch) -> Sequence[Route]:
    """Return the routes that show and turn the kill switch."""
    routes = Routes()

    @routes.get("/admin/kill", roles=WATCHERS, summary="The kill switch: what it stops, and by which sources")
    async def kill_status() -> KillStatus:
        return switch.shown

    @routes.put("/admin/kill", roles=OPERATORS, summary="Turn the operator's kill switch, for one scope or all")
    async def kill(body: Annotated[KillBody, read_body(KillBody)], caller: SignedIn) -> KillStatus:
        check_scope(body.scope)
        reason = await to_thread.run_sync(shown_reason, body.reason)
        switch.turn(on=body.on, by=caller.actor, reason=reason, scope=body.scope)
        return switch.shown

    return routes.all
