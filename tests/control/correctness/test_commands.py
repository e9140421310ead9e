"""`prolepsis correctness` against a server that runs."""

import json
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import httpx
import pytest
from msgspec import structs
from typer.testing import CliRunner, Result

from prolepsis.core.config import ServerConfig
from prolepsis.core.events import Difference, Event, Tokens
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.telemetry.logs import configure_logs
from prolepsis.server.cli.main import app
from tests.server.conftest import served
from tests.server.fakes import FakeEngine

DIFFERENCE = Difference(7, 65, 66, "structural", 4.5, 0.25)


class Parting(FakeEngine):
    """Replays whose first sample parts from what was emitted, where the prompt says so."""

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        differs = request.is_replay and request.prompt_token_ids == tuple(b"wrong")
        async for event in super().generate(request):
            yield structs.replace(event, difference=DIFFERENCE) if differs and isinstance(event, Tokens) else event


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    configure_logs("error")  # the server runs in this process: its lines would be among the command's
    with served(Parting(), ServerConfig(replay_sample=1.0, controls_file=tmp_path / "controls.json")) as running:
        yield running.url


def run(url: str, *words: str) -> Result:
    return CliRunner().invoke(app, ["correctness", "--url", url, *words])


def ask(url: str, prompt: str, num_replayed: int) -> None:
    with httpx.Client(base_url=url) as http:
        http.post("/v1/completions", json={"model": "tiny", "prompt": prompt}).raise_for_status()
        while sum(http.get("/admin/health").json()["correctness"]["outcomes"].values()) < num_replayed:
            pass


def test_status_and_figures_say_how_it_stands(url: str) -> None:
    before = run(url)
    assert (before.exit_code, "100%" in before.stdout) == (0, True)
    ask(url, "right", 1)
    good = run(url, "--json")
    assert (good.exit_code, json.loads(good.stdout)["match_rate"]) == (0, 1.0)
    ask(url, "wrong", 2)
    bad = run(url)
    assert bad.exit_code == 1
    assert "50%" in bad.stdout
    assert "structural" in bad.stdout
    assert "4.5" in bad.stdout


def test_a_missing_server_is_reported() -> None:
    result = run("http://127.0.0.1:9")
    assert result.exit_code == 2
    assert "no server answers at http://127.0.0.1:9" in result.stderr
