"""`prolepsis batch`: results of every line, an interrupted file resumed, faults by line, files that do not fit."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.server.cli.batch import BatchFile, results_of, run_lines
from prolepsis.server.cli.main import app
from tests.server.application import build
from tests.server.batches.conftest import chat_line, jsonl
from tests.server.conftest import steady
from tests.server.fakes import ByteTokenizer, FakeEngine


def written(path: Path, *lines: object) -> Path:
    path.write_bytes(jsonl(*lines))
    return path


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def ran(file: Path, output: Path, engine: FakeEngine | None = None) -> int:
    """Run what is left of a file, as the command does with an engine."""
    application = build(steady(), engine or FakeEngine(), ByteTokenizer(), Metrics())
    requests, shown = BatchFile.read(file), list[None]()
    with results_of(output) as (out, done):
        left = [line for line in requests.lines if line.custom_id not in done]
        async with application.router.lifespan_context(application):
            failed = await run_lines(requests, left, out, application.state.services, lambda: shown.append(None))
    assert len(shown) == len(left)
    return failed


async def test_every_line_has_a_result(tmp_path: Path) -> None:
    lines = [*(chat_line(f"{i}", f"Hi {i}") for i in range(200)), chat_line("wrong", max_tokens=0)]
    file, output = written(tmp_path / "in.jsonl", *lines), tmp_path / "out.jsonl"
    assert await ran(file, output) == 1
    found = {one["custom_id"]: one["response"]["status_code"] for one in read(output)}
    assert found == {**{f"{i}": 200 for i in range(200)}, "wrong": 400}
    assert len(read(output)) == 201


async def test_a_model_that_is_not_there_fails_each_line(tmp_path: Path) -> None:
    file = written(tmp_path / "in.jsonl", chat_line("a", model="other"), chat_line("b", model="other"))
    assert await ran(file, tmp_path / "out.jsonl") == 2
    assert [one["response"]["status_code"] for one in read(tmp_path / "out.jsonl")] == [404, 404]


async def test_an_interrupted_file_is_resumed(tmp_path: Path) -> None:
    """Results before a kill stay, the one that it cut off runs again, and no line has two."""
    file, output = written(tmp_path / "in.jsonl", *(chat_line(f"{i}") for i in range(5))), tmp_path / "out.jsonl"
    assert await ran(file, output) == 0
    whole = output.read_bytes().splitlines(keepends=True)
    output.write_bytes(whole[0] + whole[1] + whole[2][:40])
    engine = FakeEngine()
    assert await ran(file, output, engine) == 0
    assert len(engine.requests) == 3
    assert output.read_bytes().startswith(whole[0] + whole[1])
    assert sorted(one["custom_id"] for one in read(output)) == ["0", "1", "2", "3", "4"]


async def test_lines_that_begin_alike_run_one_after_the_other(tmp_path: Path) -> None:
    def asks(name: str, system: str) -> dict[str, Any]:
        messages = [{"role": "system", "content": system * 100}, {"role": "user", "content": name}]
        return chat_line(name, messages=messages)

    file = written(tmp_path / "in.jsonl", *(asks(f"{i}", "ab"[i % 2]) for i in range(20)))
    order = [int(line.custom_id) % 2 for line in BatchFile.read(file).lines]
    assert order in ([0] * 10 + [1] * 10, [1] * 10 + [0] * 10)


def invoke(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["batch", *map(str, arguments)], env={"COLUMNS": "200"})
    return result.exit_code, result.output


def test_an_empty_file_has_empty_results(tmp_path: Path) -> None:
    status, shown = invoke(written(tmp_path / "in.jsonl"), "-o", tmp_path / "out.jsonl")
    assert (status, (tmp_path / "out.jsonl").read_bytes()) == (0, b"")
    assert "lines" in shown


def test_faults_are_named_by_line_before_a_model_is_loaded(tmp_path: Path) -> None:
    file = written(tmp_path / "in.jsonl", chat_line("a"), "{", {**chat_line("b"), "url": "/v1/embeddings"})
    status, shown = invoke(file, "-o", tmp_path / "out.jsonl", "--model", tmp_path / "none")
    assert status == 2
    assert "line 2: The line is not valid JSON" in shown
    assert "line 3: url is '/v1/embeddings'; allowed: /v1/chat/completions, /v1/completions, /v1/responses" in shown
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize(
    ("content", "what"),
    [(b'{"custom_id": "else"}\n', "'else'"), (b"notes\n", "no file of results"), (b"notes", "no file of results")],
)
def test_results_of_something_else_are_not_touched(tmp_path: Path, content: bytes, what: str) -> None:
    output = tmp_path / "out.jsonl"
    output.write_bytes(content)
    status, shown = invoke(written(tmp_path / "in.jsonl", chat_line("a")), "-o", output)
    assert (status, output.read_bytes()) == (2, content)
    assert what in shown


def test_two_commands_do_not_write_one_file(tmp_path: Path) -> None:
    file, output = written(tmp_path / "in.jsonl", chat_line("a")), tmp_path / "out.jsonl"
    with results_of(output):
        status, shown = invoke(file, "-o", output)
    assert status == 2
    assert "another command" in shown
