"""Which cluster replicas start on, and that a signal ends a server that waits for Ray."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from prolepsis.adapters.ray.cluster import Cluster, noted_address, prepare, started_aside
from prolepsis.core.config import ServerConfig

WAITS = """
import signal, sys, threading
from prolepsis.adapters.ray.cluster import started_aside
def start():
    print("waits", flush=True)
    threading.Event().wait()
started_aside(start, lambda: print("ended", flush=True))
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_an_own_cluster_is_on_loopback_has_a_token_of_its_own_and_joins_no_other() -> None:
    environment = {"RAY_ADDRESS": "10.0.0.9:6379"}
    prepare(Cluster(), environment)
    assert "RAY_ADDRESS" not in environment
    assert environment["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
    assert len(environment["RAY_AUTH_TOKEN"]) == 64
    folder = Path(environment["RAY_TMPDIR"])
    assert folder.stat().st_mode & 0o077 == 0, "Ray lets all users write what is in it, its sockets too"
    other: dict[str, str] = {}
    prepare(Cluster(), other)
    assert other["RAY_AUTH_TOKEN"] != environment["RAY_AUTH_TOKEN"]
    assert other["RAY_TMPDIR"] != environment["RAY_TMPDIR"]


@pytest.mark.parametrize("name", ["RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"])
def test_what_people_set_of_tokens_stays(name: str) -> None:
    environment = {name: "mine"}
    prepare(Cluster(), environment)
    assert {key: value for key, value in environment.items() if "AUTH" in key} == {name: "mine"}


def test_a_named_cluster_keeps_its_variables_and_servers_there_have_an_application_each() -> None:
    environment = {"RAY_ADDRESS": "10.0.0.8:6379"}
    one, other = Cluster("10.0.0.9:6379"), Cluster("10.0.0.9:6379")
    prepare(one, environment)
    assert environment.keys() == {"RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS"}, "Ray would follow RAY_ADDRESS"
    assert (one.is_own, Cluster().is_own) == (False, True)
    assert one.application != other.application


@pytest.mark.parametrize("address", ["", "http://10.0.0.9:6379", "10.0.0.9", "ray://10.0.0.9:10001"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="ray_address"):
        ServerConfig(ray_address=address)
    assert ServerConfig(ray_address="auto").ray_address == "auto"


def test_the_address_that_ray_start_noted_is_read(tmp_path: Path) -> None:
    note = tmp_path / "ray_current_cluster"
    note.write_text("10.0.0.9:6379\n")
    note.chmod(0o644)
    assert noted_address(note) == "10.0.0.9:6379"


def give_away(note: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give a file to another user")
    os.chown(note, 4711, -1)


def link(note: Path) -> None:
    note.rename(note.parent / "other")
    note.symlink_to(note.parent / "other")


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (give_away, "is another user's"),
        (lambda note: note.chmod(0o666), "others may write it"),
        (link, "cannot be read"),
        (Path.unlink, "allowed: after `ray start`"),
        (lambda note: note.write_text("ray://10.0.0.9:10001"), "holds 'ray://"),
        (lambda note: note.write_bytes(b"\xff" * 9999), "allowed: HOST:PORT"),
    ],
)
def test_an_address_that_others_may_have_noted_is_not_followed(
    tmp_path: Path, change: Callable[[Path], object], fault: str
) -> None:
    note = tmp_path / "ray_current_cluster"
    note.write_text("10.0.0.9:6379")
    note.chmod(0o644)
    change(note)
    with pytest.raises(ConnectionError, match=re.escape(fault)):
        noted_address(note)


def test_what_starts_is_returned_or_raised_and_its_thread_stays() -> None:
    def fail() -> None:
        raise ConnectionError("no cluster")

    thread = started_aside(threading.current_thread, fail)
    assert thread.is_alive(), "Ray's processes end with the thread that started them"
    with pytest.raises(ConnectionError, match="no cluster"):
        started_aside(fail, fail)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_what_waits(number: signal.Signals) -> None:
    path = os.pathsep.join(sys.path)
    environment = {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, env=environment, text=True) as waiting:
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == "waits\n"
        waiting.send_signal(number)
        assert waiting.wait(20) == -number
        assert waiting.stdout.read() == "ended\n"
