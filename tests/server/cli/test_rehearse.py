"""`prolepsis rehearse` on a tiny model: measured, recorded, forecast."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from prolepsis.core.config import EngineConfig
from prolepsis.core.terminal.output import UNPROVEN
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
    assert [(one["mode"], one["rate"]) for one in shown] == [("off", 0.1), ("auto", 0.1), ("off", 1.0), ("auto", 1.0)]


POLICY = """
rules:
  - name: all
    match: {}
    mode: "on"
    rollout: {step_weights: [50], gate: automatic}
    guardrails: [{name: errors, metric: error_rate, limit: 0.3}]
"""


def test_run_says_what_the_control_did(calibration: Calibration, tmp_path: Path) -> None:
    machine, trace = files(calibration, tmp_path)
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    command = ("rehearse", "run", trace, "--machine", machine, "--rates", "1", "--policy", str(policy))
    plain, own = json.loads(run_command(*command, "--json").stdout)["forecasts"]
    assert plain["changes"] == []
    assert [(one["what"], one["at"]) for one in own["changes"]] == [("rollout.started", 0.0)]
    shown = run_command(*command).stdout
    assert "what the control did" in shown
    assert "rollout.started" in shown


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
