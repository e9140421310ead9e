"""`prolepsis workload` on files and on a server."""

import json
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
from typer.testing import CliRunner, Result

from prolepsis.core.terminal.output import BAD_INPUT
from prolepsis.lab.rehearsal.trace import Trace, TraceLine, write_trace
from prolepsis.server.cli.main import app
from tests.server.conftest import served
from tests.server.fakes import FakeEngine


def run_command(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["workload", *arguments], env={"COLUMNS": "250"})


def test_texts_are_counted_in_tokens_of_the_model(tiny_family: Callable[[str, str], Path], tmp_path: Path) -> None:
    file, model = tmp_path / "answers.jsonl", str(tiny_family("sentencepiece", "hermes"))
    file.write_text('{"prompt": "say it again: one two three", "answer": "one two three", "category": "copies"}\n')
    found = json.loads(run_command(str(file), "--model", model, "--json").stdout)
    assert found["classes"][0]["traffic_class"] == "copies"
    assert found["answer_tokens"]["p50"] > 1
    assert found["overlap"][0]["share"] > 0.0
    assert found["next"] == [{"command": f"prolepsis rehearse measure --prompts {file} -o rehearsal"}]
    shown = run_command(str(file), "--model", model).stdout
    assert "by overlap of your answers" in " ".join(shown.split())


def test_a_trace_is_told_with_what_it_does_not_tell(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    write_trace(file, Trace(lines=(TraceLine(at=0.0, prompt=900, output=5),)))
    result = run_command(str(file))
    assert result.exit_code == 0, result.output
    assert "summaries" in result.stdout
    assert "rule of the field" in " ".join(result.stdout.split())
    assert "what is - or none" in result.stdout
    assert result.stdout.rstrip().splitlines()[-2].strip() == "prolepsis rehearse measure -o rehearsal"


def test_a_server_tells_of_its_last_requests() -> None:
    with served(FakeEngine()) as running:
        for _ in range(3):
            body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
            httpx2.post(f"{running.url}/v1/chat/completions", json=body).raise_for_status()
        found = json.loads(run_command("--url", running.url, "--json").stdout)
    assert found["num_requests"] == 3
    assert found["classes"][0]["traffic_class"] == "chat-completions/standard/free/short"
    assert found["drafts"] == {"suffix": {"drafted": 18, "right": 9}}
    assert found["outlook"][0]["evidence"] == "measured on this server"
    assert found["next"] == [{"command": f"prolepsis policy show --url {running.url}"}]


def test_a_server_without_requests_and_a_file_without_any_are_refused(tmp_path: Path) -> None:
    with served(FakeEngine()) as running:
        result = run_command("--url", running.url)
    assert (result.exit_code, f"{running.url} has no request" in result.stderr) == (BAD_INPUT, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((), "either FILE or --url URL"), (("FILE", "--url", "http://127.0.0.1:1"), "FILE and --url are both given")],
)
def test_one_source_is_needed(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    file = tmp_path / "a"
    file.write_text("")
    result = run_command(*(str(file) if one == "FILE" else one for one in arguments))
    assert result.exit_code == BAD_INPUT
    assert message in result.stderr


def test_a_file_that_is_missing_is_refused(tmp_path: Path) -> None:
    result = run_command(str(tmp_path / "none.jsonl"))
    assert result.exit_code == BAD_INPUT
    assert "none.jsonl" in result.stderr
