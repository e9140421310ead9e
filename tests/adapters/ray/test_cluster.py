"""Which cluster replicas start on, and that a signal ends a server that waits for Ray."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from prolepsis.adapters.ray.autoscaling import IN_FLIGHT, QUEUE_AGE_S, WAITING, Scaling, policy, wanted_replicas
from prolepsis.adapters.ray.cluster import Cluster, noted_address, prepare, started_aside
from prolepsis.adapters.ray.start import start_replicas
from prolepsis.core.config import EngineConfig, LimitTerms, ServerConfig
from prolepsis.core.errors import ConfigError
from prolepsis.core.telemetry.metrics import Metrics

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


def test_an_engine_that_is_not_ours_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"engine is 'vllm'; allowed with replicas: prolepsis") as refused:
        start_replicas(EngineConfig(engine="vllm"), Scaling(least=2, most=2), Metrics())
    assert refused.value.param == "engine"


@pytest.mark.parametrize(
    ("in_flight", "waiting", "age_s", "wanted"),
    [
        ((0, 0), 0, 0.0, 1),  # quiet
        ((10, 0), 0, 0.0, 1),
        ((10, 1), 0, 0.0, 2),
        ((10, 10), 15, 0.9, 4),  # what waits is load, too
        ((10, 10), 0, 1.1, 3),  # the engines are not full and yet requests wait
        ((0, 0), 1, 30.0, 3),
        ((10, 10), 45, 30.0, 7),
    ],
)
def test_two_replicas_are_as_many_as_their_load_wants(
    in_flight: tuple[int, int], waiting: int, age_s: float, wanted: int
) -> None:
    figures = {IN_FLIGHT: in_flight, WAITING: (waiting, waiting), QUEUE_AGE_S: (age_s, 0.0)}
    assert wanted_replicas(2, figures, samples_per_replica=10) == wanted


def test_replicas_that_have_told_nothing_want_one() -> None:
    assert wanted_replicas(3, {}, samples_per_replica=10) == 1


def test_the_policy_reads_what_ray_serve_has_gathered() -> None:
    context = SimpleNamespace(
        aggregated_metrics={IN_FLIGHT: {"a": 25.0, "b": 6.0}, "running_requests": {"a": 900.0}},
        current_num_replicas=2,
        config=SimpleNamespace(target_ongoing_requests=10.0),
    )
    assert policy(context) == (4, {})
    context.aggregated_metrics = None
    assert policy(context) == (1, {})


def test_settings_bound_the_number() -> None:
    assert Scaling.of(ServerConfig(replicas=3)) == Scaling(least=3, most=3)
    assert Scaling.of(ServerConfig(replicas=3)).is_fixed
    scaling = Scaling.of(ServerConfig(max_replicas=4, limits=LimitTerms(samples_per_replica=8)))
    assert scaling == Scaling(least=1, most=4, samples_per_replica=8)
    assert not scaling.is_fixed
