"""Gates of `prolepsis bench`: which are understood, which pass, and the examples for continuous integration."""

import json
import re
import shlex
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from prolepsis.core.errors import ConfigError
from prolepsis.core.requests import GenerateRequest, SamplingParams
from prolepsis.core.terminal.output import BAD_INPUT, FAILED, OK
from prolepsis.lab.bench import BenchJob, run_bench
from prolepsis.lab.measure.contenders import Schedule
from prolepsis.lab.measure.verdicts import judged, parse_gates
from prolepsis.server.cli.main import app
from tests.lab.measure.fakes import ByteTokenizer, table_client, tokens_of, two_prompts, write_prompts
from tests.paths import ROOT

JOB = BenchJob("file", two_prompts(), "auto", Schedule((1, 2), 2), SamplingParams(temperature=0.0, max_tokens=6))


async def results(gates: str, **client: Any) -> dict[tuple[str, str], tuple[float | None, bool]]:
    """Return value and outcome by gate and concurrency."""
    report = await run_bench(JOB, table_client(**client), ByteTokenizer(), notify=lambda line: None)
    found = judged(parse_gates(gates), json.loads(json.dumps(report)))
    return {(one["gate"], one["concurrency"]): (one["value"], one["passed"]) for one in found}


async def test_each_gate_is_judged_by_what_was_measured_at_each_concurrency() -> None:
    found = await results("acceptance>=0.9,tokens_a_pass>=2.9,tokens_a_pass>=3.1,speedup>=1.5,p95_ms<=1,exact")
    assert found.keys() == {(gate, level) for gate, level in found if level in ("1", "2")}
    assert len(found) == 12
    for level in ("1", "2"):
        assert found["acceptance>=0.9", level] == (1.0, True)
        assert found["tokens_a_pass>=2.9", level] == (3.0, True)
        assert found["tokens_a_pass>=3.1", level] == (3.0, False)
        assert found["speedup>=1.5", level][1]
        assert found["exact", level] == (1.0, True)
        value, passed = found["p95_ms<=1", level]
        assert value is not None
        assert value > 1.0
        assert not passed, "a request takes 10 ms"


async def test_one_answer_with_other_tokens_misses_exact() -> None:
    def altered(request: GenerateRequest, speculating: bool) -> list[int]:
        tokens = tokens_of(request, speculating)
        return [*tokens[:-1], 255] if speculating and len(request.prompt_token_ids) > 5 else tokens

    assert await results("exact", alter=altered) == {("exact", "1"): (0.5, False), ("exact", "2"): (0.5, False)}


def test_a_figure_that_was_not_measured_misses_its_gate() -> None:
    report = {
        "concurrency": {"1": {"arms": {"plain": {}, "auto": {"acceptance": {"median": None}}}}},
        "outputs": {"auto": {"concurrency": {"1": {"num_prompts": 2, "num_different": 0}}}},
    }
    [found] = judged(parse_gates("acceptance>=0"), report)
    assert (found["value"], found["passed"]) == (None, False)


@pytest.mark.parametrize("text", ["speed>=1", "speedup", "speedup>1", "speedup>=fast", "exact>=1", "acceptance>=60%"])
def test_an_unknown_gate_is_answered_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ConfigError, match="allowed: exact, or one of acceptance, speedup, tokens_a_pass, p95_ms"):
        parse_gates(f"exact,{text}")


def test_bad_gates_are_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path / "prompts.jsonl")
    for words in (["--gate", "speed>=1"], ["--gate", "exact", "--arms", "plain"]):
        result = CliRunner().invoke(app, ["bench", "--prompts", str(prompts), *words])
        assert result.exit_code == BAD_INPUT
        assert "gate is " in result.stderr


@pytest.mark.parametrize(("gate", "status", "outcome"), [("exact", OK, "pass"), ("tokens_a_pass>=4", FAILED, "fail")])
def test_the_exit_status_is_that_of_the_gates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: str, status: int, outcome: str
) -> None:
    @asynccontextmanager
    async def engine(_: object) -> AsyncIterator[object]:
        client = table_client()
        client.engine = SimpleNamespace(timings=None)  # type: ignore[attr-defined]
        yield SimpleNamespace(client=client, tokenizer=ByteTokenizer())

    monkeypatch.setattr("prolepsis.server.cli.engine.running", engine)  # the command loads a model
    prompts, report = write_prompts(tmp_path / "prompts.jsonl"), tmp_path / "report.json"
    result = CliRunner().invoke(app, ["bench", "--prompts", str(prompts), "--gate", gate, "--json", str(report)])
    assert result.exit_code == status, result.output
    [line] = [line.split() for line in result.stdout.splitlines() if line.strip().startswith(gate)]
    assert (line[1], line[-1]) == ("auto", outcome)
    [written] = json.loads(report.read_text())["gates"]
    assert (written["gate"], written["passed"]) == (gate, outcome == "pass")


def blocks() -> Iterator[Any]:
    page = (ROOT / "docs" / "how-to" / "gate-in-ci.md").read_text()
    for text in re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        yield yaml.safe_load(text)


def scripts(value: Any) -> Iterator[str]:
    """Yield the commands of a pipeline: of GitHub's steps and of GitLab's jobs."""
    if isinstance(value, dict):
        for name, inner in value.items():
            lines = inner if isinstance(inner, list) else [inner]
            yield from (str(line) for line in lines) if name in ("run", "script") else scripts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from scripts(inner)


def test_the_examples_are_yaml_and_run_the_real_command() -> None:
    from tests.test_documentation import understood

    pipelines = list(blocks())
    assert len(pipelines) == 2, "GitHub Actions and GitLab CI"
    for pipeline in pipelines:
        [command] = [line for line in scripts(pipeline) if line.startswith("prolepsis bench")]
        words = shlex.split(command)
        understood(tuple(words[1:]))
        assert "exact" in parse_gates(words[words.index("--gate") + 1])
