"""`prolepsis kill`: the kill switch of the servers on this machine, or of one that is named by its URL."""

import getpass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from prolepsis.cli.flags import settings_here
from prolepsis.cli.output import EPILOG, AsJson, command_group, note, print_json, stdout, warn
from prolepsis.cli.servers import Key, ask
from prolepsis.core.errors import ConfigError
from prolepsis.safety.kill_switch import NEVER, KillFile, KillState, default_kill_file

app = command_group("Stop all speculation of the servers here, or of one by its URL, between two steps, until told.")

File = Annotated[Path | None, typer.Option("--kill-file", help="default: kill.json in the user's data directory")]
Url = Annotated[str | None, typer.Option(help="of one server, which is told instead of the file; it keeps its own")]
Reason = Annotated[str, typer.Option(help="for the log, and for whoever looks later")]


@app.command(epilog=EPILOG)
def on(reason: Reason = "", kill_file: File = None, url: Url = None, key: Key = None, as_json: AsJson = False) -> None:
    """Stop speculation: servers decode plainly from the next step on, after a restart too, until it is turned off."""
    _turn(_where(kill_file, url), key, as_json, on=True, reason=reason)


@app.command(epilog=EPILOG)
def off(reason: Reason = "", kill_file: File = None, url: Url = None, key: Key = None, as_json: AsJson = False) -> None:
    """Let servers speculate again, as policies and flags say."""
    _turn(_where(kill_file, url), key, as_json, on=False, reason=reason)


@app.command(epilog=EPILOG)
def status(kill_file: File = None, url: Url = None, key: Key = None, as_json: AsJson = False) -> None:
    """Say how it stands: in the file, or with --url what a server makes of it, flags included."""
    where = _where(kill_file, url)
    if isinstance(where, str):
        _show_served(ask(where, key, "GET", "/admin/kill"), as_json)
    else:
        _show(where, where.read(), as_json)


def _turn(where: KillFile | str, key: str | None, as_json: bool, *, on: bool, reason: str) -> None:
    if isinstance(where, str):
        _show_served(ask(where, key, "PUT", "/admin/kill", {"on": on, "reason": reason}), as_json)
        return
    state = KillState(on=on, by=getpass.getuser(), reason=reason, at=datetime.now(UTC))
    where.write(state)
    _show(where, state, as_json)
    if not as_json:
        note(f"{where.path} is written; servers that look at it follow within a second")


def _show(file: KillFile, state: KillState, as_json: bool) -> None:
    if as_json:
        print_json({"file": file.path, **state.model_dump(mode="json")})
    else:
        _print(state, on=state.on)


def _show_served(status: dict[str, Any], as_json: bool) -> None:
    """Show what a server says: it may be on by a flag while the operator's switch is off."""
    if as_json:
        print_json(status)
        return
    _print(KillState.model_validate(status["operator"]), on=status["on"])
    if status["sources"]:
        note(f"kept on by: {', '.join(status['sources'])}")
    for problem in (status["fault"], status.get("not_kept")):
        if problem:
            warn(problem)


def _print(state: KillState, *, on: bool) -> None:
    since = "" if state == NEVER else f", since {state.at:%Y-%m-%d %H:%M:%S %Z} by {state.by or 'somebody'}"
    why = f": {state.reason}" if state.reason else ""
    stdout().print(f"{'on' if on else 'off'}{since}{why}", soft_wrap=True, markup=False)


def _where(file: Path | None, url: str | None) -> KillFile | str:
    """Return the file or the URL that is meant; raises `ConfigError` where both are given."""
    if url is None:
        return KillFile(file or settings_here().server.kill_file or default_kill_file())
    if file is not None:
        raise ConfigError("--kill-file and --url are both given; allowed: one of them", param="url")
    return url
