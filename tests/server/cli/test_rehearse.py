"""`prolepsis rehearse` on a tiny model: measured, recorded, forecast."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from prolepsis.core.config import EngineConfig
from prolepsis.core.terminal.output import BAD_INPUT, UNPROVEN
from prolepsis.engine.build import build_engine
from prolepsis.engine.models.load import load_model
from prolepsis.engine.rehearsal.machine import Machine
from prolepsis.engine.rehearsal.measure import StepMeter
from prolepsis.engine.thread import ThreadEngineClient
from prolepsis.server.cli.bench.prompts import EncodedPrompt
from prolepsis.server.cli.main import app
from prolepsis.server.cli.rehearse.calibrate import Calibration, OfferedLoad, calibrate, record
from prolepsis.server.rehearsal.trace import Trace, TraceLine, write_trace


def run_command(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


@pytest.fixture(scope="module")
def calibration(tiny_family: Callable[[str, str], Path]) -> Calibration:
    config = EngineConfig(model=str(tiny_family("sentencepiece", "hermes")), max_model_len=512)
    meter, target = StepMeter(), load_model(config)
    client = ThreadEngineClient(build_engine(config, meter, target=target))
    prompts = [EncodedPrompt(str(i), "", tuple(range(5, 45 + i))) for i in range(3)]
    loads = [
        OfferedLoad(prompts=prompts, per_second=rate, num_requests=8, max_tokens=24, seed=int(rate))
        for rate in (40.0, 80.0)
    ]

    async def measured() -> Calibration:
        try:
            found = await calibrate(client, target.model, meter, loads, lambda text: None)
            always = await record(client, loads[-1], "always", "always")  # auto leaves out drafts that do not pay
            return replace(found, auto=always)
        finally:
            await client.close()

    return asyncio.run(measured())


def test_a_machine_is_measured_and_its_requests_are_recorded(calibration: Calibration) -> None:
    machine, plain, auto = calibration.machine, calibration.plain, calibration.auto
    assert machine.engine.max_model_len == 512
    assert "suffix" in machine.proposers
    assert machine.proposers["suffix"].free
    assert len(machine.scatter) == 5
    assert machine.step_ms + machine.row_ms + machine.token_ms > 0.0
    assert [len(trace.lines) for trace in (plain, auto)] == [8, 8]
    assert [(one.prompt, one.output) for one in plain.lines] == [(one.prompt, one.output) for one in auto.lines]
    assert not any(one.drafts for one in plain.lines)
    assert any(one.drafts for one in auto.lines)
    assert all(one.measured and 0.0 < one.measured.first_token_s <= one.measured.total_s for one in auto.lines)
    assert len({one.blocks[0] for one in auto.lines}) < 8, "equal prompts have equal blocks"


def files(calibration: Calibration, folder: Path) -> tuple[str, str]:
    machine, trace = folder / "machine.json", folder / "auto.jsonl"
    machine.write_text(calibration.machine.to_json())
    write_trace(trace, calibration.auto)
    return str(machine), str(trace)


def test_what_was_measured_reads_as_it_was_written(calibration: Calibration, tmp_path: Path) -> None:
    machine, _ = files(calibration, tmp_path)
    read = Machine.from_json(Path(machine).read_text())
    assert read.to_json() == calibration.machine.to_json()
    with pytest.raises(ValueError, match="not a measured machine"):
        Machine.from_json("{}")


def test_check_prints_the_error_of_each_time(calibration: Calibration, tmp_path: Path) -> None:
    machine, trace = files(calibration, tmp_path)
    result = run_command("rehearse", "check", trace, "--machine", machine, "--json")
    compared = json.loads(result.stdout)
    times = ("time to first token", "time a token", "end to end")
    expected = {(what, share) for what in times for share in (0.5, 0.95, 0.99)}
    assert {(one["what"], one["share"]) for one in compared} == expected | {
        ("tokens a pass", None),
        ("tokens a second", None),
    }
    assert all(one["forecast"] > 0.0 for one in compared)


def test_run_shows_each_load_plain_and_speculating(calibration: Calibration, tmp_path: Path) -> None:
    machine, trace = files(calibration, tmp_path)
    result = run_command("rehearse", "run", trace, "--machine", machine, "--rates", "0.1,1", "--json")
    shown = json.loads(result.stdout)["forecasts"]
    by_load = [("off", "0.1x"), ("auto", "0.1x"), ("off", "1x"), ("auto", "1x")]
    assert [(one["mode"], one["load"]) for one in shown] == by_load


def test_run_writes_a_page_and_recommends_rules(calibration: Calibration, tmp_path: Path) -> None:
    machine, trace = files(calibration, tmp_path)
    page, policy = tmp_path / "page.html", tmp_path / "policy.yaml"
    options = ("--machine", machine, "--rates", "1,2", "--requests", "3")
    more = ("--seeds", "2", "--price-per-hour", "2.5", "--html", str(page))
    result = run_command("rehearse", "run", trace, *options, *more, "--json")
    shown = json.loads(result.stdout)
    assert [one["seed"] for one in shown["forecasts"]] == [0] * 4 + [1] * 4
    assert "Forecast of auto.jsonl" in page.read_text()
    policy.write_text(shown["rules"])
    assert run_command("policy", "check", str(policy), "--strict").exit_code == 0
    ruled = run_command("rehearse", "run", trace, *options, "--policy", str(policy))
    assert "speculation stops paying" in ruled.stdout
    assert "never checked" in ruled.stdout


def test_a_shipped_machine_is_named_and_said_not_to_be_measured(calibration: Calibration, tmp_path: Path) -> None:
    _, trace = files(calibration, tmp_path)
    listed = json.loads(run_command("rehearse", "machines", "--json").stdout)
    assert {one["name"] for one in listed["times"]} == listed["sources"].keys() >= {"h100x2-llama-70b-fp8"}
    result = run_command("rehearse", "run", trace, "--machine", "h100x2-llama-70b-fp8", "--rates", "1")
    assert "not measured: 2 NVIDIA H100" in result.stderr
    unknown = run_command("rehearse", "run", trace, "--machine", "h100x3", "--rates", "1")
    assert unknown.exit_code == BAD_INPUT


def test_a_trace_that_says_nothing_of_drafts_proves_nothing(calibration: Calibration, tmp_path: Path) -> None:
    machine, recording = files(calibration, tmp_path)
    write_trace(tmp_path / "bare.jsonl", Trace(lines=(TraceLine(at=0.0, prompt=9, output=5),)))
    bare = str(tmp_path / "bare.jsonl")
    result = run_command("rehearse", "run", bare, "--machine", machine, "--rates", "1")
    assert result.exit_code == UNPROVEN
    assert "says nothing of drafts" in result.stderr
    assert not run_command(
        "rehearse", "run", bare, "--machine", machine, "--rates", "1", "--drafts", recording
    ).exit_code


@pytest.mark.parametrize("rates", ["0", "a", "1,-2"])
def test_a_rate_that_is_none_is_refused(calibration: Calibration, tmp_path: Path, rates: str) -> None:
    machine, trace = files(calibration, tmp_path)
    result = run_command("rehearse", "run", trace, "--machine", machine, "--rates", rates)
    assert "allowed: numbers above 0" in result.stderr
