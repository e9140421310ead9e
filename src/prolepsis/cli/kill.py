"""`prolepsis kill`: the kill switch of all servers on this machine, or of one server; of everything or of one scope."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from prolepsis.cli.acts import actor, record_act, user
from prolepsis.cli.admin import Key, ask
from prolepsis.cli.flags import settings_here
from prolepsis.cli.output import EPILOG, AsJson, command_group, note, print_json, stdout, warn
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.errors import ConfigError
from prolepsis.core.files import JsonFile
from prolepsis.core.kill_scope import EVERYTHING, KINDS, check_scope
from prolepsis.safety.kill_switch import NEVER_SET, KilledScope, KillState, KillStatus, shown_reason
from prolepsis.safety.kill_switch import kill_file as kill_file_at

app = command_group("Turn the kill switch on or off: while it is on, servers decode without speculation.")

File = Annotated[Path | None, typer.Option("--kill-file", help="default: kill.json in the user's data directory")]
Url = Annotated[str | None, typer.Option(help="address of one server; default: the kill file, for all servers here")]
_OF_SERVERS = ("rule:", "tenant:", "traffic_class:")
"""Scopes that each server has by its policy and its keys."""
_SCOPES = ", ".join(f"{kind}:NAME" for kind in KINDS)
Scope = Annotated[str, typer.Option(help=f"what to stop, or to allow again: {EVERYTHING}, {_SCOPES}")]
Reason = Annotated[str, typer.Option(help="shown in the log and by `kill status`")]


def _add_turn(name: str, text: str, *, on: bool) -> None:
    """Add the command that turns the switch on, or off."""

    @app.command(name, help=text, epilog=EPILOG)
    def turn(
        *,
        reason: Reason = "",
        scope: Scope = EVERYTHING,
        kill_file: File = None,
        url: Url = None,
        key: Key = None,
        as_json: AsJson = False,
    ) -> None:
        check_scope(scope)
        where = _where(kill_file, url)
        if isinstance(where, str):
            status = ask(where, key, "PUT", "/admin/kill", {"on": on, "reason": reason, "scope": scope})
            _show_turned_on_server(status, scope, reason, as_json)
        else:
            entry = KilledScope(scope=scope, by=user(), reason=shown_reason(reason), at=datetime.now(UTC))
            _turn_file(where, entry, as_json, on=on)


_add_turn(
    "on", "Stop speculation from the next step on, also after a restart, until the switch is turned off.", on=True
)
_add_turn(
    "off", "Allow speculation again, as far as policies, flags and other scopes that are stopped allow it.", on=False
)


@app.command(epilog=EPILOG)
def status(kill_file: File = None, url: Url = None, key: Key = None, as_json: AsJson = False) -> None:
    """Show the state in the kill file, or with --url the state of a server including its flags."""
    where = _where(kill_file, url)
    if isinstance(where, str):
        _show_served(ask(where, key, "GET", "/admin/kill"), as_json)
    else:
        _show(where, where.read(), as_json)


def _turn_file(file: JsonFile[KillState], entry: KilledScope, as_json: bool, *, on: bool) -> None:
    state = file.read().turned(entry, on=on)
    file.write(state)
    if as_json:
        print_json({"file": file.path, **state.model_dump(mode="json")})
    else:
        _show_scope(entry.scope, state.entry(entry.scope), state.released, entry.reason)
    after = {**state.model_dump(mode="json"), "on": on, "scope": entry.scope, "reason": entry.reason}
    record_act(AuditEvent(actor=actor(), action=f"kill.{'on' if on else 'off'}", subject=str(file.path), after=after))
    if not as_json:
        note(f"wrote {file.path}; servers that use this file follow within a second")
        if on and entry.scope.startswith(_OF_SERVERS):
            warn(f"no server was asked whether it has {entry.scope}; `prolepsis kill status --url URL` asks one")


def _show_scope(scope: str, stopped: KilledScope | None, released: KilledScope | None, reason: str) -> None:
    """Show one scope after it was turned; `reason` is the one given now."""
    named = "" if scope == EVERYTHING else f" for {scope}"
    if stopped is not None:
        _line(f"on{named}", stopped, known=True)
        if reason and stopped.reason != reason:
            note("it was on already: its first reason stays, and the audit log has yours")
    elif released is not None and released.scope == scope:
        _line(f"off{named}", released, known=True)
    else:
        stdout().print(f"off{named}", soft_wrap=True, markup=False)


def _show_turned_on_server(status: dict[str, Any], scope: str, reason: str, as_json: bool) -> None:
    """Show the scope that was turned; what else keeps it stopped is a warning."""
    if as_json:
        print_json(status)
        return
    known = KillStatus.model_validate({name: status[name] for name in KillStatus.model_fields if name in status})
    _show_scope(scope, known.entry(scope), known.released, shown_reason(reason))
    if known.entry(scope) is None and (scope in status["killed"] or EVERYTHING in status["killed"]):
        warn(f"speculation stays off for everything, by: {', '.join(status['sources'])}")
    for problem in (known.fault, known.not_saved, known.warnings.get(scope)):
        if problem:
            warn(problem)


def _show(file: JsonFile[KillState], state: KillState, as_json: bool) -> None:
    if as_json:
        print_json({"file": file.path, **state.model_dump(mode="json")})
    else:
        _print(state, on=state.on, known=state.at != NEVER_SET.at)


def _show_served(status: dict[str, Any], as_json: bool) -> None:
    """Show the state of a server; a flag may keep speculation off while the operator's switch is off.

    Who released everything is not known: the file has its own last release only, the store none.
    """
    if as_json:
        print_json(status)
        return
    operator = KillState.model_validate(status["operator"])
    _print(operator, on=status["on"], known=operator.on)
    for entry in map(KilledScope.model_validate, status.get("shared", ())):
        _line(f"on for {entry.scope} on all replicas", entry, known=True)
    if status["sources"]:
        note(f"turned on by: {', '.join(status['sources'])}")
    for problem in (status["fault"], status.get("not_saved"), *status.get("warnings", {}).values()):
        if problem:
            warn(problem)


def _print(state: KillState, *, on: bool, known: bool) -> None:
    """Show whether everything is stopped, and a file's scopes; `known`: it is as the file's last entry left it."""
    _line("on" if on else "off", state, known=known)
    for entry in state.scopes:
        _line(f"on for {entry.scope}", entry, known=True)


def _line(text: str, entry: KillState | KilledScope, *, known: bool) -> None:
    since = f", since {entry.at:%Y-%m-%d %H:%M:%S %Z} by {entry.by or 'unknown'}" if known else ""
    why = f": {entry.reason}" if known and entry.reason else ""
    stdout().print(f"{text}{since}{why}", soft_wrap=True, markup=False)


def _where(file: Path | None, url: str | None) -> JsonFile[KillState] | str:
    """Return the file or the URL that is meant; raises `ConfigError` where both are given."""
    if url is None:
        return kill_file_at(file or settings_here().server.kill_file)
    if file is not None:
        raise ConfigError("--kill-file and --url are both given; allowed: one of them", param="url")
    return url
