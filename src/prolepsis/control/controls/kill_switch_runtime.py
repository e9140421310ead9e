"""The kill switch while serving: it follows its controls and the flag, and operators turn it over HTTP."""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Literal, get_args

import structlog
from anyio import to_thread
from prometheus_client import CollectorRegistry
from pydantic import Field

from prolepsis.control.controls.controls import Controls, Origin
from prolepsis.control.controls.kill_switch import KILL, KillStatus, Reason, Source, act, kill_status, shown_reason
from prolepsis.control.controls.known_scopes import ANYTHING, KnownScopes
from prolepsis.control.store.controls import Control
from prolepsis.control.web.body_reader import read_body
from prolepsis.control.web.caller import SignedIn
from prolepsis.control.web.feature import Feature
from prolepsis.control.web.fields import Body
from prolepsis.control.web.routes import OPERATORS, WATCHERS, Route, Routes
from prolepsis.core.audit_event import SERVER, AuditEvent, Emit, discard
from prolepsis.core.facts import FlagDecision
from prolepsis.core.kill_scope import EVERYTHING, check_scope
from prolepsis.core.telemetry.declare import gauge

FLAG: Literal["flag"] = "flag"  # the actor where the flag turns the switch

log = structlog.get_logger(__name__)


class KillSwitch(Feature):
    """Calls `kill` with all scopes that are stopped, whenever they change. Belongs to one event loop."""

    name = "kill_switch"

    def __init__(
        self,
        controls: Controls,
        kill: Callable[[frozenset[str]], None],
        registry: CollectorRegistry,
        *,
        known: KnownScopes = ANYTHING,
        emit: Emit = discard,
    ) -> None:
        """`known`: what has a scope here; a stop of another one is a warning."""
        self.status = KillStatus()
        self.routes = kill_routes(self)
        self._controls = controls
        self._kill = kill
        self._known = known
        self._emit = emit
        self._killed = gauge(registry, "speculation_killed", "1 while the kill switch is on, by source", "source")
        self._scopes = gauge(registry, "speculation_killed_scopes", "Scopes that the kill switch stops one by one")
        controls.follow(KILL, self._follow)

    @property
    def shown(self) -> KillStatus:
        """The status, with warnings of scopes that nothing here has now."""
        texts = {scope: self._known.warning(scope) for scope in self.status.killed}
        warnings = {scope: text for scope, text in texts.items() if text}
        return self.status.model_copy(
            update={"warnings": warnings, "fault": self._controls.fault, "not_saved": self._controls.not_saved}
        )

    def turn(self, *, on: bool, by: str, reason: str, scope: str = EVERYTHING) -> None:
        """Stop or release a scope at once; `shown` says if that could not be saved.

        A scope that is stopped already keeps its first reason; the audit log has this one. Raises `InvalidParameter` if
        too many scopes are stopped.
        """
        before = self.status
        control = act(before, scope, on=on, by=by, reason=reason, at=datetime.now(UTC))
        self._controls.set(KILL, scope, control.value, by=control.by, reason=control.reason)
        self._record(before, on=on, actor=by, subject="" if scope == EVERYTHING else scope, reason=reason)

    def trip(self, by: str, reason: str) -> None:
        """Stop everything, unless something is stopped already."""
        if not self.status.on:
            self.turn(on=True, by=by, reason=reason)

    def follow(self, flag: FlagDecision) -> None:
        """Follow the flag; an evaluation that failed changes nothing, unless it stops speculation."""
        if flag.error and not flag.value:
            return
        before = self.status
        self._become(before.model_copy(update={"flag": flag}), FLAG)
        if flag.value != (before.flag is not None and before.flag.value):
            self._record(before, on=flag.value, actor=FLAG, subject=flag.key)

    def _follow(self, origin: Origin) -> None:
        """Follow the controls; what did not come by an act of this server is recorded with where it came from."""
        before, local = self.status, self._controls.local(KILL)
        status = kill_status(local, self._controls.shared(KILL))
        self._become(status.model_copy(update={"flag": before.flag}), origin)
        if origin == "file" or (origin == "start" and status.operator):
            last = _last(local.values()) or Control(None, 0.0)
            on = origin == "start" or last.value is not None
            self._record(before, on=on, actor=last.by or SERVER, subject=str(self._controls.file.path))
        if origin == "start" and status.shared:
            self._record(before, on=True, actor=SERVER, subject="store")

    def _record(self, before: KillStatus, *, on: bool, actor: str, subject: str = "", reason: str = "") -> None:
        """Record an act with its reason; `subject` is the scope, or the file or the flag that it came by."""
        was, now = (status.model_dump(mode="json") for status in (before, self.status))
        after = {**now, "reason": reason} if reason else now
        action = "kill.on" if on else "kill.off"
        self._emit(AuditEvent(actor=actor, action=action, subject=subject, before=was, after=after))

    def _become(self, status: KillStatus, origin: Origin | Literal["flag"]) -> None:
        before = self.status
        stopped, freed = ({*status.killed} - {*before.killed}), ({*before.killed} - {*status.killed})
        if stopped or freed:
            self._kill(frozenset(status.killed))
        self.status = status  # not before: where `_kill` fails, the next call tries again
        for source in get_args(Source):
            self._killed.labels(source).set(source in status.sources)
        self._scopes.set(len({*status.killed} - {EVERYTHING}))
        for scope in sorted(stopped | freed):
            on = scope in stopped
            sections = self._controls.local(KILL), self._controls.shared(KILL)
            last = _last(section[scope] for section in sections if scope in section)
            by, reason = (FLAG, "") if origin == FLAG or last is None else (last.by, last.reason)
            sources = self.status.stopped_by(scope)
            (log.warning if on else log.info)("kill_switch", on=on, scope=scope, sources=sources, by=by, reason=reason)
            if on and (warning := self._known.warning(scope)):
                log.warning("kill_scope_unknown", scope=scope, detail=warning)


def _last(controls: Iterable[Control]) -> Control | None:
    return max(controls, key=lambda control: control.at, default=None)


class KillBody(Body):
    on: bool
    reason: Reason = ""
    scope: Annotated[str, Field(max_length=300)] = EVERYTHING
    """everything, or route:, rule:, tenant:, traffic_class: or proposer: and a name."""


def kill_routes(switch: KillSwitch) -> Sequence[Route]:
    """Return the routes that show and turn the kill switch."""
    routes = Routes()

    @routes.get("/admin/kill", roles=WATCHERS, summary="The kill switch: what it stops, and by which sources")
    async def status() -> KillStatus:
        return switch.shown

    @routes.put("/admin/kill", roles=OPERATORS, summary="Turn the operator's kill switch, for one scope or all")
    async def kill(body: Annotated[KillBody, read_body(KillBody)], caller: SignedIn) -> KillStatus:
        check_scope(body.scope)
        reason = await to_thread.run_sync(shown_reason, body.reason)
        switch.turn(on=body.on, by=caller.actor, reason=reason, scope=body.scope)
        return switch.shown

    return routes.all
