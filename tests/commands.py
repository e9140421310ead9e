"""Runs commands that serve something: from when a URL answers until a block ends."""

import os
import secrets
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx2

END_S = 30.0
"""A command that goes on so long after it is told to end is killed."""


def prolepsis(*arguments: str, python: str = sys.executable) -> list[str]:
    """Return our command line as a command of a Python that need not have it installed as a program."""
    return [python, "-c", "from prolepsis.server.cli.main import app; app()", *arguments]


def free_port() -> int:
    """Return a port of loopback on which nothing listens now, below those that the system gives to clients."""
    while True:
        port = 10_000 + secrets.randbelow(20_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


@contextmanager
def running(
    command: Sequence[str],
    log: Path | None = None,
    environment: Mapping[str, str] = os.environ,
    end_s: float = END_S,
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a command until the block ends; what it writes goes to a file, if one is named, and else where ours goes."""
    with ExitStack() as stack:
        output = stack.enter_context(log.open("ab")) if log else None
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(end_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def serving(
    command: Sequence[str],
    ready: str,
    log: Path | None = None,
    environment: Mapping[str, str] = os.environ,
    wait_s: float = 60.0,
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a command, once its URL `ready` answers, until the block ends; raises RuntimeError if it does not come up."""
    with running(command, log, environment) as process:
        try:
            wait_until_ready(ready, wait_s, has_ended=lambda: process.poll() is not None)
        except TimeoutError as error:
            written = log.read_text(errors="replace")[-4000:] if log else "(see above)"
            raise RuntimeError(f"{command[0]}: {error}:\n{written}") from None
        yield process


def wait_until_ready(
    url: str, wait_s: float = 60.0, certificate: Path | None = None, has_ended: Callable[[], bool] = lambda: False
) -> None:
    """Wait until a URL answers with status 200; raises TimeoutError, early if its server has ended."""
    end = time.monotonic() + wait_s
    with httpx2.Client(verify=trusting(certificate)) as http:
        while time.monotonic() < end and not has_ended():
            with suppress(httpx2.TransportError):
                if http.get(url).status_code == httpx2.codes.OK:
                    return
            time.sleep(0.02)
    raise TimeoutError(f"{url} did not answer")


def trusting(certificate: Path | None) -> ssl.SSLContext | bool:
    """Return what httpx2 verifies servers with."""
    return ssl.create_default_context(cafile=str(certificate)) if certificate else True
