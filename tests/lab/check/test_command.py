"""`prolepsis check` with a small random model, on a server, on a trace, and interrupted."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from prolepsis.core.terminal.output import BAD_INPUT, INTERRUPTED, UNPROVEN
from prolepsis.lab.check.answers import ComparedAnswers
from prolepsis.lab.check.parts import PilotCheck
from prolepsis.lab.rehearsal.trace import Trace, TraceLine, write_trace
from prolepsis.server.cli.main import app
from tests.fake_client import INFO
from tests.lab.measure.fakes import write_prompts
from tests.server.conftest import served
from tests.server.fakes import FakeEngine


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands run here, with a store of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROLEPSIS_DATA", str(tmp_path / "data"))
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["check", *arguments], env={"COLUMNS": "200"})


def kept(folder: Path) -> Any:
    return json.loads((folder / "check.json").read_text())


def test_one_command_says_what_is_known(tiny_family: Callable[[str, str], Path], folder: Path) -> None:
    model = str(tiny_family("sentencepiece", "hermes"))
    result = run(str(write_prompts(folder / "prompts.jsonl")), "--model", model, "--minutes", "0.05")
    found = kept(folder)
    assert result.stdout.rstrip().splitlines()[-1] == found["sentence"]
    assert found["classes"] == {"code": 1, "chat": 1}
    assert {row["traffic_class"]: row["num_requests"] for row in found["traffic"]} == {"code": 1, "chat": 1}
    assert found["compared"]["different"] == 0
    assert found["compared"]["answers"] > 0, result.output
    assert list(found["ms_a_pass"]) == ["1_tokens", "4_tokens", "8_tokens", "32_tokens"]
    assert {"pass", "fail", "unknown"} >= found["doctor"]["checks"].keys()
    assert found["gains"]
    assert (result.exit_code, found["verdict"], found["is_interrupted"]) == (UNPROVEN, "not known yet", False)


def test_a_trace_has_nothing_to_answer(tiny_family: Callable[[str, str], Path], folder: Path) -> None:
    write_trace(folder / "trace.jsonl", Trace(lines=(TraceLine(at=0.0, prompt=900, output=5),)))
    result = run("trace.jsonl", "--model", str(tiny_family("sentencepiece", "hermes")))
    assert result.exit_code == UNPROVEN
    assert "1 none/standard/free/medium" in result.stdout
    assert "a trace has none" in result.stdout.splitlines()[-1]


def test_a_server_is_asked_with_and_without_speculation(folder: Path) -> None:
    with served(FakeEngine(info=replace(INFO, max_model_len=8192))) as running:
        result = run("--url", running.url, "--minutes", "0.1")
        modes = {request.speculation.mode for request in running.engine.requests}
    found = kept(folder)
    assert modes == {"off", "auto"}
    assert found["compared"]["answers"] > found["compared"]["different"] == 0
    assert "check your own" in found["sentence"]
    assert "the shipped set" in result.stdout
    assert (found["server"], found["model"]) == (running.url, "tiny")


def test_ctrl_c_loses_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first_turn = ComparedAnswers.compare

    async def once(compared: ComparedAnswers, unit: str, cases: Any) -> None:
        if compared.comparisons:
            raise KeyboardInterrupt
        await first_turn(compared, unit, cases)

    monkeypatch.setattr(ComparedAnswers, "compare", once)
    with served(FakeEngine(info=replace(INFO, max_model_len=8192))) as running:
        result = run("--url", running.url)
    found = kept(folder)
    assert result.exit_code == INTERRUPTED
    assert result.stdout.rstrip().splitlines()[-1] == found["sentence"]
    assert found["is_interrupted"]
    assert [gain["num_requests"] for gain in found["gains"]] == [1]


def test_a_file_that_is_missing_is_refused_before_a_model_is_loaded() -> None:
    result = run("none.jsonl", "--model", "none.gguf")
    assert (result.exit_code, "none.jsonl" in result.stderr) == (BAD_INPUT, True)


def test_the_file_is_whole_before_anything_is_known(folder: Path) -> None:
    check = PilotCheck(folder / "check.json", 3.0, folder / "prompts.jsonl", is_own=True)
    check.keep(model="m")
    assert (kept(folder)["model"], kept(folder)["verdict"]) == ("m", "not known yet")
