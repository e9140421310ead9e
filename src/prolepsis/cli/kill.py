"""`prolepsis kill`: the kill switch of the servers on this machine."""

import getpass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from prolepsis.cli.flags import settings_here
from prolepsis.cli.groups import AsJson, command_group
from prolepsis.cli.output import EPILOG, note, print_json, stdout
from prolepsis.control.kill_file import NEVER, KillFile, KillState, default_kill_file

app = command_group("Stop all speculation of the servers here, between two steps, and keep it stopped.")

File = Annotated[Path | None, typer.Option("--kill-file", help="default: kill.json in the user's data directory")]
Reason = Annotated[str, typer.Option(help="for the log, and for whoever looks later")]


@app.command(epilog=EPILOG)
def on(reason: Reason = "", kill_file: File = None, as_json: AsJson = False) -> None:
    """Stop speculation: servers decode plainly from the next step on, after a restart too, until it is turned off."""
    _turn(_file(kill_file), as_json, on=True, reason=reason)


@app.command(epilog=EPILOG)
def off(reason: Reason = "", kill_file: File = None, as_json: AsJson = False) -> None:
    """Let servers speculate again, as policies and flags say."""
    _turn(_file(kill_file), as_json, on=False, reason=reason)


@app.command(epilog=EPILOG)
def status(kill_file: File = None, as_json: AsJson = False) -> None:
    """Say how it stands; what a running server makes of it, flags included, says its GET /admin/kill."""
    file = _file(kill_file)
    _show(file, file.read(), as_json)


def _turn(file: KillFile, as_json: bool, *, on: bool, reason: str) -> None:
    state = KillState(on=on, by=getpass.getuser(), reason=reason, at=datetime.now(UTC))
    file.write(state)
    _show(file, state, as_json)
    if not as_json:
        note(f"{file.path} is written; servers that look at it follow within a second")


def _show(file: KillFile, state: KillState, as_json: bool) -> None:
    if as_json:
        print_json({"file": file.path, **state.model_dump(mode="json")})
        return
    since = "" if state == NEVER else f", since {state.at:%Y-%m-%d %H:%M:%S %Z} by {state.by or 'somebody'}"
    why = f": {state.reason}" if state.reason else ""
    stdout().print(f"{'on' if state.on else 'off'}{since}{why}", soft_wrap=True, markup=False)


def _file(given: Path | None) -> KillFile:
    return KillFile(given or settings_here().server.kill_file or default_kill_file())
