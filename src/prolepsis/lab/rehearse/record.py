"""`prolepsis rehearse record`: the traffic of a running server as a trace."""

import time
from pathlib import Path
from typing import Annotated

import typer

from prolepsis.core.errors import ConfigError
from prolepsis.core.files import write_whole
from prolepsis.core.terminal.admin import HERE, Key, Url, ask
from prolepsis.core.terminal.output import print_facts, stderr

_PATH, _POLL_S = "/admin/recording", 0.5


def record(
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="file of the trace: JSON lines in gzip")],
    seconds: Annotated[float, typer.Option(min=0.1, help="requests that arrive in this time")] = 600.0,
    requests: Annotated[int, typer.Option(min=1, help="most requests")] = 1000,
    share: Annotated[float, typer.Option(min=0, max=1, help="share of the requests whose drafts are recorded")] = 1.0,
    url: Url = HERE,
    key: Key = None,
) -> None:
    """Record a running server's traffic: times, lengths, shapes of drafts, no text. Needs the role admin."""
    if output.suffix != ".gz" or not output.parent.is_dir():
        raise ConfigError(f"output is {output}; allowed: a name that ends with .gz, in a folder", param="output")
    ask(url, key, "POST", _PATH, {"seconds": seconds, "requests": requests, "share": share})
    try:
        _wait(url, key, seconds)
    finally:  # interrupted too: the file has what ended so far
        write_whole(output, ask(url, key, "GET", f"{_PATH}/file", read=lambda reply: reply.content))
        last = ask(url, key, "DELETE", _PATH)
        print_facts([("recording", output), ("requests", last["num_requests"]), ("left out", last["num_left_out"])])


def _wait(url: str, key: str | None, seconds: float) -> None:
    """Show how far the recording is until its requests have ended."""
    from rich.progress import BarColumn, Progress, TimeRemainingColumn

    with Progress("{task.description}", BarColumn(), TimeRemainingColumn(), console=stderr()) as progress:
        bar = progress.add_task("", total=seconds)
        while True:
            now = ask(url, key, "GET", _PATH)
            text = f"{now['num_requests']} requests recorded, {now['num_running']} running"
            progress.update(bar, description=text, completed=seconds - now["remaining_s"])
            if not now["remaining_s"] and not now["num_running"]:
                return
            time.sleep(_POLL_S)
