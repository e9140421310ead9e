"""The report of a whole measurement on a fake engine: shape, ratios, provenance, tables, exit statuses."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from prolepsis.core.engine_client import EngineHealth
from prolepsis.core.errors import EngineDead, EngineError
from prolepsis.core.requests import GenerateRequest, SamplingParams
from prolepsis.core.terminal.output import BAD_INPUT
from prolepsis.lab.bench import BenchJob, run_bench
from prolepsis.lab.measure.contenders import Outcome, Run, Schedule
from prolepsis.lab.measure.provenance import commit, provenance
from prolepsis.lab.measure.report import NOT_LOOPING, Figures, print_report
from prolepsis.server.cli.main import app
from tests.lab.measure.fakes import ByteTokenizer, table_client, tokens_of, two_prompts, write_prompts

JOB = BenchJob(
    "file", two_prompts(), "auto,suffix@4", Schedule((1, 2), 2), SamplingParams(temperature=0.0, max_tokens=6)
)
SPREAD = {"median", "min", "max"}


def _silent(line: str) -> None:
    """Say nothing."""


async def _report(job: BenchJob = JOB, **client: Any) -> dict[str, Any]:
    report = await run_bench(job, table_client(**client), ByteTokenizer(), notify=_silent)
    written: dict[str, Any] = json.loads(json.dumps(report))
    return written


async def test_the_report_has_the_promised_shape() -> None:
    report = await _report()
    assert set(report["arms"]) == {"plain", "auto", "suffix@4"}
    for of_arm in report["arms"].values():
        assert set(of_arm) == {"all", "code", "chat"}
        for figures in of_arm.values():
            for key in ("tokens_per_s", "speedup", "tokens_a_pass", "ttft_ms", "latency_ms"):
                assert set(figures[key]) >= SPREAD
                assert figures[key]["min"] <= figures[key]["median"] <= figures[key]["max"]
    assert set(report["concurrency"]) == {"1", "2"}
    for level in report["concurrency"].values():
        assert set(level["arms"]) == {"plain", "auto", "suffix@4"}
        for figures in level["arms"].values():
            for key in ("tokens_per_s", "latency_ms", "p95_ms"):
                assert set(figures[key]) >= SPREAD


async def test_ratios_and_acceptance_are_those_of_the_engine() -> None:
    report = await _report()
    assert report["arms"]["plain"]["all"]["speedup"]["median"] == 1.0
    assert report["arms"]["auto"]["all"]["speedup"]["median"] > 1.5, "0.01 s against 0.03 s a request"
    assert report["arms"]["plain"]["all"]["tokens_a_pass"]["median"] == 1.0
    assert report["arms"]["auto"]["code"]["tokens_a_pass"]["median"] == 3.0
    assert report["arms"]["auto"]["all"]["queue_ms"]["median"] == pytest.approx(1.0)
    assert len(report["arms"]["auto"]["all"]["speedup"]["repeats"]) == 2


async def test_the_same_tokens_are_counted_by_prompt() -> None:
    same = await _report()
    assert same["outputs"]["auto"]["concurrency"]["2"] == {"num_prompts": 2, "num_different": 0, "different": []}

    def altered(request: GenerateRequest, speculating: bool) -> list[int]:
        tokens = tokens_of(request, speculating)
        return [*tokens[:-1], 255] if speculating and len(request.prompt_token_ids) > 5 else tokens

    different = await _report(alter=altered)
    assert different["outputs"]["auto"]["compared_with"] == "plain"
    assert different["outputs"]["auto"]["concurrency"]["1"]["different"] == ["p2"]


async def test_provenance_says_where_figures_come_from() -> None:
    report = await _report()
    told = report["provenance"]
    assert set(told) >= {"commit", "command", "versions", "hardware", "seeds"}
    assert set(told["versions"]) >= {"prolepsis", "python", "torch"}
    assert set(told["hardware"]) >= {"processor", "cores", "instructions", "memory_bytes"}
    assert "scope" in report["settings"]["fairness"]
    assert report["settings"]["num_prompts"] == {"code": 1, "chat": 1}


def test_a_folder_outside_a_checkout_has_no_commit(tmp_path: Path) -> None:
    assert commit(tmp_path) is None
    assert provenance({"a": 1}, {"vllm": "2"})["seeds"] == {"a": 1}


async def test_tables_name_every_arm_and_category(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(await _report())
    printed = capsys.readouterr().out
    for word in ("code", "chat", "all", "plain", "suffix@4", "2 requests at a time", "same tokens", "2 of 2"):
        assert word in printed


async def test_without_concurrency_1_there_are_only_throughputs() -> None:
    report = await _report(replace(JOB, schedule=Schedule((2,), 1)))
    assert report["arms"] == {}
    assert report["concurrency"]["2"]["arms"]["auto"]["speedup"]["median"] is not None
    print_report(report)


async def test_an_engine_that_dies_ends_the_measurement() -> None:
    client = table_client()
    client.reported = EngineHealth(alive=False, ready=False, detail="gone")
    with pytest.raises(EngineDead, match="gone"):
        await run_bench(JOB, client, ByteTokenizer(), notify=_silent)


async def test_a_request_that_fails_ends_the_measurement() -> None:
    def broken(request: GenerateRequest, speculating: bool) -> list[int]:
        raise EngineError("broke")

    with pytest.raises(EngineError, match="broke"):
        await _report(alter=broken)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--arms", "plain,sufix"], "sufix"),
        (["--concurrency", "0"], "concurrency is '0'"),
        (["--temperature", "9"], "temperature is 9"),
        (["--temperature", "1", "--top-p", "2"], "top_p is 2"),
        (["--categories", "nonsense"], "nonsense"),
        (["--json", "/nowhere/at/all/out.json"], "folder does not exist"),
    ],
)
def test_bad_input_is_one_line_and_exit_status_2_before_any_model_is_loaded(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    prompts = write_prompts(tmp_path / "prompts.jsonl")
    result = CliRunner().invoke(app, ["bench", "--prompts", str(prompts), *arguments])
    assert result.exit_code == BAD_INPUT
    assert said in " ".join(result.stderr.split())


def test_prompts_whose_plain_output_loops_are_reported_apart() -> None:
    def run(contender: str, seconds: tuple[float, float]) -> Run:
        texts = {"straight": tuple(range(60)), "loop": (1, 2, 3) * 20}
        outcomes = [
            Outcome(name, "chat", tokens, took) for (name, tokens), took in zip(texts.items(), seconds, strict=True)
        ]
        return Run(contender, 1, 0, wall_s=sum(seconds), outcomes=outcomes)

    figures = Figures([run("plain", (2.0, 2.0)), run("auto", (1.0, 0.25))])
    assert figures.looping == {"loop"}
    assert figures.ratio("auto", "plain", 1, NOT_LOOPING)["median"] == pytest.approx(2.0)
    assert figures.ratio("auto", "plain", 1, "all")["median"] == pytest.approx(3.2)
