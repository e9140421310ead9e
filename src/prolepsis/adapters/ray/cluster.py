"""The Ray cluster of a server's replicas: its own, which only this machine reaches, or one that `ray_address` names."""

import os
import re
import signal
import stat
import threading
from collections.abc import Callable, MutableMapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from tempfile import mkdtemp
from types import FrameType
from typing import NoReturn, TypeVar
from uuid import uuid4

from prolepsis.core.config import OWN_CLUSTER
from prolepsis.core.signals import handling_stops

ENDS_SILENT_ONES = ("RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS", "1")
"""A variable for Ray Serve's controller: replicas that fail their health checks are killed, and not drained first."""
LOOPBACK = "127.0.0.1"
_ON_LOOPBACK = ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
"""A variable that Ray reads where it is imported: this machine's address is then 127.0.0.1, as Ray has it on macOS.
Otherwise Ray takes the address of the network for 127.0.0.1, and listens on all of them."""
_MOST_CHARACTERS = 300
_END_S = 10.0
"""How long what was begun on another's cluster may take to end."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster, and the application of Ray Serve that the replicas are there."""

    address: str = OWN_CLUSTER  # `local`: one of the server's own; else one that runs: `auto`, or HOST:PORT
    application: str = field(default_factory=lambda: f"prolepsis-engines-{uuid4().hex[:8]}")
    """Servers on one cluster have one each."""

    @property
    def is_own(self) -> bool:
        return self.address == OWN_CLUSTER


def prepare(cluster: Cluster, environment: MutableMapping[str, str] = os.environ) -> None:
    """Set the variables that Ray reads where it is imported and started; those that people set stay.

    Ray asks for a token in a cluster of its own. Here it is in no file: Ray would write one that all may read. Its
    sockets and code are in a folder of this user alone: in /tmp/ray others could put theirs in place of them.
    """
    environment.setdefault(*ENDS_SILENT_ONES)
    environment.pop("RAY_ADDRESS", None)  # which Ray would follow in place of ours
    if not cluster.is_own:
        return
    environment.update([_ON_LOOPBACK])
    if "RAY_TMPDIR" not in environment:
        environment["RAY_TMPDIR"] = mkdtemp(prefix="ray-")
    if not {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & environment.keys():
        environment["RAY_AUTH_TOKEN"] = token_hex(32)


def noted_address(file: Path) -> str:
    """Return the address of the Ray that runs on this machine, from the file in which `ray start` notes it.

    Any user may put a file there, and what answers at its address runs code here. Raises `ConnectionError` for a file
    of another user, or without an address.
    """
    try:
        with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), errors="replace") as noted:
            status, text = os.fstat(noted.fileno()), noted.read(_MOST_CHARACTERS).strip()
    except OSError as error:
        raise ConnectionError(f"{file} cannot be read: {error.strerror}; allowed: after `ray start`") from error
    if status.st_uid not in (0, os.getuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConnectionError(f"{file} is another user's, or others may write it; allowed: HOST:PORT")
    if re.fullmatch(r"[^/\s]+:[0-9]{1,5}", text) is None:
        raise ConnectionError(f"{file} holds {text[:80]!r}; allowed: HOST:PORT")
    return text


def started_aside(start: Callable[[], Result], end: Callable[[], None]) -> Result:
    """Return what `start` returns, or raise what it raises; while it runs, SIGTERM and SIGINT end this process.

    `end` takes back what was begun, where others would keep it; it has seconds for that. The thread stays: Ray's
    processes end with the thread that started them, and code of Ray that waits takes no signal in the main thread.
    """
    done: Future[Result] = Future()

    def run() -> None:
        try:
            done.set_result(start())
        except BaseException as error:  # contained: raised where it is waited for
            done.set_exception(error)
        threading.Event().wait()

    try:
        with handling_stops(_raise_signal):
            threading.Thread(target=run, name="ray", daemon=True).start()
            return done.result()
    except _Signalled as signalled:
        ending = threading.Thread(target=end, name="ray-end", daemon=True)
        ending.start()
        ending.join(_END_S)
        end_by(signalled.number)


class _Signalled(BaseException):
    def __init__(self, number: int) -> None:
        self.number = number


def end_by(number: int) -> NoReturn:
    """End this process by a signal; what Ray does at an exit may wait for what never comes."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    raise SystemExit(128 + number)


def _raise_signal(number: int, _: FrameType | None) -> NoReturn:
    raise _Signalled(number)
