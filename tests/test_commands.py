"""Commands that serve something come up or say why not, and end."""

import signal
import sys
from pathlib import Path

import pytest

from tests.commands import free_port, running, serving


def test_a_command_that_ends_at_once_shows_what_it_wrote(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no model here')"]
    url = f"http://127.0.0.1:{free_port()}"
    with (
        pytest.raises(RuntimeError, match=r"(?s)did not answer.*no model here"),
        serving(command, url, tmp_path / "log"),
    ):
        raise AssertionError("it never answered")


def test_a_command_that_will_not_end_is_killed(tmp_path: Path) -> None:
    script = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); signal.pause()"
    log = tmp_path / "log"
    with running([sys.executable, "-c", script], log, end_s=0.05) as process:
        while not log.read_text():
            assert process.poll() is None
    assert process.returncode == -signal.SIGKILL


def test_a_url_of_a_command_is_asked_until_it_answers(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]
    with serving(command, f"http://127.0.0.1:{port}/", tmp_path / "log") as process:
        assert process.poll() is None
    assert process.returncode == -signal.SIGTERM
