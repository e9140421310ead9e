"""`prolepsis stop` and `resume`: the kill switch of this machine or a server; of everything or a scope."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from prolepsis.control.audit.commands.acts import actor, record_act, user
from prolepsis.control.controls.file import ControlsContent, ControlsFile, of_kind
from prolepsis.control.controls.kill_switch import KILL, KillStatus, act, kill_status, shown_reason
from prolepsis.control.store.controls import Control, control_key
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.errors import ConfigError
from prolepsis.core.kill_scope import EVERYTHING, KINDS, check_scope
from prolepsis.core.terminal.admin import Key, ServerUrl, ask, server_in_place
from prolepsis.core.terminal.documents import print_reply
from prolepsis.core.terminal.flags import settings_here
from prolepsis.core.terminal.output import AsJson, note, print_json, stdout, warn

File = Annotated[Path | None, typer.Option(help="default: controls.json in the user's data directory")]
_OF_SERVERS = ("rule:", "tenant:", "traffic_class:")  # scopes that each server has by its policy and its keys
_SCOPES = ", ".join(f"{kind}:NAME" for kind in KINDS)
Scope = Annotated[str, typer.Option(help=f"what is meant: {EVERYTHING}, {_SCOPES}")]
_STOPPED = ("scope", "since=at", "by", "reason")
_SAID = {True: "stopped", False: "allowed"}
Reason = Annotated[str, typer.Option(help="shown in the log and by `stop --show`")]


def stop(
    *,
    show: Annotated[bool, typer.Option("--show", help="change nothing: show what is stopped")] = False,
    scope: Scope = EVERYTHING,
    reason: Reason = "",
    controls_file: File = None,
    url: ServerUrl = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Stop speculation from the next step on, also after a restart, until `resume`: on this machine, or at a server."""
    where = _where(controls_file, url)
    if show:
        document = ask(where, key, "GET", "/admin/kill") if isinstance(where, str) else _in_file(where, where.read())
        shown = document if as_json else {**document, "warnings": [*document["warnings"].values()]}
        print_reply(shown, {"operator": _STOPPED, "shared": _STOPPED}, as_json=as_json)
    else:
        _turn(where, key, scope, reason, on=True, as_json=as_json)


def resume(
    *,
    scope: Scope = EVERYTHING,
    reason: Reason = "",
    controls_file: File = None,
    url: ServerUrl = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Allow speculation again, as far as policies, flags and other scopes that are stopped allow it."""
    _turn(_where(controls_file, url), key, scope, reason, on=False, as_json=as_json)


def _turn(where: ControlsFile | str, key: str | None, scope: str, reason: str, *, on: bool, as_json: bool) -> None:
    check_scope(scope)
    given = shown_reason(reason)
    if isinstance(where, str):
        document = ask(where, key, "PUT", "/admin/kill", {"on": on, "reason": reason, "scope": scope})
    else:
        known = status_here(_content(where, scope) if on else where.read())
        control = act(known, scope, on=on, by=user(), reason=given, at=datetime.now(UTC))
        document = _in_file(where, where.set(control_key(KILL, scope), control))
        after = {"on": on, "scope": scope, "reason": given}
        action = f"kill.{'on' if on else 'off'}"
        record_act(AuditEvent(actor=actor(), action=action, subject=str(where.path), after=after))
    if as_json:
        print_json(document)
        return
    status = KillStatus.model_validate({name: document[name] for name in KillStatus.model_fields if name in document})
    _show_turned(status, scope, given, on=on)
    if not isinstance(where, str):
        note(f"wrote {where.path}; servers that use this file follow within a second")
        if not on and "store" in status.stopped_by(scope):
            warn("still stopped on all replicas; `prolepsis resume --url URL` lifts that too")
        if on and scope.startswith(_OF_SERVERS):
            warn(f"no server was asked whether it has {scope}; `prolepsis stop --show --url URL` asks one")


def _in_file(file: ControlsFile, content: ControlsContent) -> dict[str, Any]:
    """Return what the file says, in the form in which a server replies."""
    return {"file": str(file.path), **status_here(content).model_dump(mode="json")}


def status_here(content: ControlsContent) -> KillStatus:
    """Return what is stopped on this machine, and on the replicas of any store that its servers use."""
    shared: dict[str, Control] = {}
    for copy in content.stores.values():
        shared |= {name: control for name, control in of_kind(copy.newest, KILL).items() if control.value is not None}
    return kill_status(of_kind(content.local, KILL), shared)


def _content(file: ControlsFile, scope: str) -> ControlsContent:
    """Return what the file says. To stop a scope, a damaged file is replaced: it may have held a stop of anything."""
    try:
        return file.read()
    except ConfigError as error:
        reason = "" if scope == EVERYTHING else str(error)  # the operator gives the reason for everything
        stop = Control("", datetime.now(UTC).timestamp(), reason=reason)
        content = file.replace_damaged(ControlsContent({control_key(KILL, EVERYTHING): stop}))
        warn(f"{error}; it is kept as {file.damaged}, and everything is stopped until `prolepsis resume`")
        return content


def _show_turned(status: KillStatus, scope: str, reason: str, *, on: bool) -> None:
    """Show the scope that was turned; `reason` is the one given now. What else keeps it stopped is a warning."""
    named, stopped = "" if scope == EVERYTHING else f" for {scope}", status.entry(scope)
    released = status.released if status.released is not None and status.released.scope == scope else None
    entry = stopped or released
    since = f", since {entry.at:%Y-%m-%d %H:%M:%S %Z} by {entry.by or 'unknown'}" if entry is not None else ""
    why = f": {entry.reason}" if entry is not None and entry.reason else ""
    stdout().print(f"{_SAID[stopped is not None]}{named}{since}{why}", soft_wrap=True, markup=False)
    if stopped is not None and on and reason and stopped.reason != reason:
        note("it was stopped already: its first reason stays, and the audit log has yours")
    if stopped is None and (scope in status.killed or status.on):
        warn(f"speculation stays off for everything, by: {', '.join(status.sources)}")
    for problem in (status.fault, status.not_saved, status.warnings.get(scope)):
        if problem:
            warn(problem)


def _where(file: Path | None, url: str | None) -> ControlsFile | str:
    """Return the file or the URL that is meant."""
    if server := server_in_place(url, file, "--controls-file"):
        return server
    return ControlsFile(file or settings_here().server.controls_file)
