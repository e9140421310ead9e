"""The systemd unit: the drain fits, and systemd accepts it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from prolepsis.core.terminal.config import load_settings
from prolepsis.server.run import ABORT_GRACE_S
from tests.deploy.written import UNIT, unit_settings

VARIABLES = dict(value.split("=", 1) for key, value in unit_settings() if key == "Environment")
SETTINGS = dict(unit_settings())


def test_the_stop_waits_for_the_drain_and_reaches_the_server_alone() -> None:
    server = load_settings({}, VARIABLES, directory=UNIT.parent).server
    assert float(SETTINGS["TimeoutStopSec"]) >= server.shutdown_s + ABORT_GRACE_S + 10
    assert SETTINGS["KillMode"] == "mixed"


def test_the_unit_writes_only_to_its_own_folders() -> None:
    for variable, parent, key in (
        ("PROLEPSIS_DATA", "/var/lib", "StateDirectory"),
        ("PROLEPSIS_CACHE", "/var/cache", "CacheDirectory"),
    ):
        assert VARIABLES[variable] == f"{parent}/{SETTINGS[key]}"


def test_the_processors_flags_can_be_read() -> None:
    assert "ProcSubset" not in SETTINGS, "/proc/cpuinfo decides which kernels run"


def test_systemd_accepts_it(tmp_path: Path) -> None:
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/prolepsis/venv/bin/prolepsis", sys.executable))
    done = subprocess.run([verify, "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False)
    assert (done.stderr, done.returncode) == ("", 0)
