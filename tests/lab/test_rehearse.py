"""`prolepsis rehearse` on a tiny model: measured, recorded, forecast."""

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from prolepsis.core.config import EngineConfig
from prolepsis.core.requests import GenerateRequest, SpecMode
from prolepsis.core.terminal.output import BAD_INPUT, UNPROVEN
from prolepsis.engine.build import build_engine
from prolepsis.engine.models.load import load_model
from prolepsis.engine.thread import ThreadEngineClient
from prolepsis.lab.measure.arrivals import load_of
from prolepsis.lab.measure.prompts import EncodedPrompt
from prolepsis.lab.rehearsal.calibrate import Calibration, LoadRecording, OfferedLoad, measured_passes, record
from prolepsis.lab.rehearsal.trace import Trace, TraceLine, read_trace, write_trace
from prolepsis.lab.virtual_engine.machine import BANDS, Machine
from prolepsis.server.cli.main import app


def run_command(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "250"})


@dataclass(frozen=True)
class Measured:
    machine: Machine
    plain: Trace
    surveyed: Trace
    auto: Trace
    steps: list[str]
    kept: list[Machine | LoadRecording]


@pytest.fixture(scope="module")
def calibration(tiny_family: Callable[[str, str], Path]) -> Measured:
    config = EngineConfig(model=str(tiny_family("sentencepiece", "hermes")), max_model_len=512)
    target = load_model(config)
    prompts = [EncodedPrompt(str(i), "", tuple(range(5, 45 + i))) for i in range(3)]
    loads = [
        OfferedLoad(load_of(text), prompts, 0.25, 24, seed=number, route="/v1/completions", tenant="ide")
        for number, text in enumerate(("3", "40/s"))
    ]
    steps, kept = list[str](), list[Machine | LoadRecording]()

    async def measured() -> Measured:
        calibration = Calibration(lambda meter: build_engine(config, meter, target=target), steps.append, kept.append)
        passes = measured_passes(target.model, config.max_step_tokens)
        machine, (plain, surveyed) = await calibration.run(passes, loads[:1], [loads[1].for_advice()])
        client = ThreadEngineClient(build_engine(config, target=target))
        try:  # auto leaves out drafts that do not pay
            auto = await record(client, loads[0], "always", "always")
            return Measured(machine, plain.trace, surveyed.trace, auto, steps, kept)
        finally:
            await client.close()

    return asyncio.run(measured())


def test_a_machine_is_measured_and_its_requests_are_recorded(calibration: Measured) -> None:
    machine, plain, auto = calibration.machine, calibration.plain, calibration.auto
    assert machine.engine.max_model_len == 512
    assert "suffix" in machine.proposers
    assert machine.proposers["suffix"].free
    assert len(machine.scatter) == 1 + len(BANDS)
    assert machine.step_ms + machine.row_ms + machine.token_ms > 0.0
    assert plain.at_once is None
    assert [one.at for one in plain.lines] == sorted(one.at for one in plain.lines)
    assert auto.at_once == 3
    assert len(auto.lines) >= 3
    assert not any(one.drafts for one in plain.lines)
    assert any(one.drafts for one in auto.lines)
    assert all(one.measured and 0.0 < one.measured.first_token_s <= one.measured.total_s for one in auto.lines)
    rounds = -(-len(auto.lines) // 3)
    assert len({one.blocks[0] for one in auto.lines}) == rounds, "prompts of a round share their first block"


def test_each_step_is_named_with_the_time_left_and_kept_when_it_ends(calibration: Measured) -> None:
    plan, *steps = calibration.steps
    assert re.match("this takes about \\d+ seconds: each of 1 loads is measured twice", plan)
    assert [text.split(":")[1].split(",")[0].strip() for text in steps] == [
        *["measuring 3 at once"] * 2,
        *["recording 40 a second"] * 2,
        f"asking all proposers about the {len(calibration.surveyed.lines)} answers",
        *["measuring 3 at once"] * 2,
    ]
    assert all(re.match(rf"step {1 + i} of 7, about \d+ seconds left", text) for i, text in enumerate(steps))
    machine, plain, auto, surveyed, last = calibration.kept
    assert isinstance(machine, Machine)
    assert [one.file for one in (plain, auto, surveyed) if isinstance(one, LoadRecording)] == [
        "plain-40-a-second.jsonl.gz",
        *["auto-40-a-second.jsonl.gz"] * 2,
    ]
    assert last == calibration.machine


def test_a_recording_has_the_requests_that_advice_needs_and_says_whose_they_are(calibration: Measured) -> None:
    assert len(calibration.plain.lines) >= 20, "in a quarter of a second ten arrive"
    assert {(one.route, one.tenant) for one in calibration.plain.lines} == {("/v1/completions", "ide")}


class Interrupted(OfferedLoad):
    """Of whose requests the third never comes."""

    def requests(self, mode: SpecMode, name: str) -> Iterator[tuple[float, GenerateRequest]]:
        yield from islice(super().requests(mode, name), 2)
        raise asyncio.CancelledError


def test_what_is_interrupted_keeps_what_was_answered(tiny_family: Callable[[str, str], Path]) -> None:
    config = EngineConfig(model=str(tiny_family("sentencepiece", "hermes")), max_model_len=512)
    offered = Interrupted(load_of("1"), [EncodedPrompt("0", "", tuple(range(5, 45)))], 60.0, 4)
    kept: list[Trace] = []

    async def interrupted() -> None:
        client = ThreadEngineClient(build_engine(config))
        try:
            with pytest.raises(asyncio.CancelledError):
                await record(client, offered, "off", "recorded", kept.append)
        finally:
            await client.close()

    asyncio.run(interrupted())
    assert [len(trace.lines) for trace in kept] == [1], "the second one was cancelled"


@pytest.mark.parametrize(
    ("lengths", "at_least"),
    [([9] * 7, 20), ([9] * 3 + [600], 80), ([9] * 19 + [600], 22), ([9, 600, 5000], 60)],
)
def test_a_recording_is_as_long_as_its_classes_need_but_for_rare_ones(lengths: list[int], at_least: int) -> None:
    prompts = [EncodedPrompt("", "", (1,) * length) for length in lengths]
    assert OfferedLoad(load_of("1"), prompts, 1.0).for_advice().at_least == at_least


def test_every_proposer_is_asked_about_an_answer(calibration: Measured) -> None:
    for one in calibration.surveyed.lines:
        for made in one.drafts.values():
            assert made[0].position == 1
        assert "suffix" in one.drafts or one.output < 4
    assert calibration.surveyed.at_once is None
    assert len(calibration.surveyed.lines) == len(calibration.plain.lines)


def files(calibration: Measured, folder: Path) -> tuple[str, str]:
    machine, trace = folder / "machine.json", folder / "auto.jsonl"
    machine.write_text(calibration.machine.to_json())
    write_trace(trace, calibration.auto)
    return str(machine), str(trace)


def test_what_was_measured_reads_as_it_was_written(calibration: Measured, tmp_path: Path) -> None:
    machine, _ = files(calibration, tmp_path)
    read = Machine.from_json(Path(machine).read_text())
    assert read.to_json() == calibration.machine.to_json()
    with pytest.raises(ValueError, match="not a measured machine"):
        Machine.from_json("{}")


def test_check_prints_the_error_of_each_time_and_is_on_record(
    calibration: Measured, audit_actions: Callable[[], list[str]], tmp_path: Path
) -> None:
    machine, trace = files(calibration, tmp_path)
    result = run_command("rehearse", "check", trace, "--machine", machine, "--json")
    assert audit_actions() == ["rehearsal.checked"]
    [compared] = json.loads(result.stdout).values()
    assert Machine.from_json(Path(machine).read_text()).checks["auto"].errors["tokens a second"] == next(
        one["error"] for one in compared if one["what"] == "tokens a second"
    )
    times = ("time to first token", "time a token", "end to end")
    known = [share for share in (0.5, 0.95, 0.99) if len(calibration.auto.lines) * (1 - share) > 0.99]
    expected = {(what, share) for what in times for share in known}
    assert {(one["what"], one["share"]) for one in compared} == expected | {
        ("tokens a pass", None),
        ("tokens a second", None),
    }
    assert all(one["forecast"] > 0.0 for one in compared)


def test_run_shows_each_load_plain_and_speculating(calibration: Measured, tmp_path: Path) -> None:
    machine, trace = files(calibration, tmp_path)
    run_command("rehearse", "check", trace, "--machine", machine)
    result = run_command("rehearse", "run", trace, "--machine", machine, "--rates", "0.1,1", "--json")
    shown = json.loads(result.stdout)
    by_load = [("off", "0.1x"), ("auto", "0.1x"), ("off", "1x"), ("auto", "1x")]
    assert [(one["mode"], one["load"]) for one in shown["forecasts"]] == by_load
    assert (list(shown["checks"]), shown["checks"]["auto"]["num_requests"]) == (["auto"], len(calibration.auto.lines))
    assert "end to end, 50 %" in shown["checks"]["auto"]["errors"]


def test_run_writes_a_page_and_advises_nothing_by_three_requests(calibration: Measured, tmp_path: Path) -> None:
    machine, trace = files(calibration, tmp_path)
    page, policy = tmp_path / "page.html", tmp_path / "policy.yaml"
    options = ("--machine", machine, "--rates", "1,2", "--requests", "3")
    more = ("--seeds", "2", "--html", str(page))
    result = run_command("rehearse", "run", trace, *options, *more, "--json")
    shown = json.loads(result.stdout)
    assert [one["seed"] for one in shown["forecasts"]] == [0] * 4 + [1] * 4
    assert "Forecast of auto.jsonl" in page.read_text()
    assert {one["why"] for one in shown["advice"].values()} == {"3 requests of 20"}
    assert shown["stops_paying"] == "not known: 3 requests of 20"
    policy.write_text(POLICY)
    ruled = run_command("rehearse", "run", trace, *options, "--policy", str(policy))
    assert "speculation stops paying" in ruled.stdout
    closed = run_command("rehearse", "run", trace, *options, "--at-once", "1,2", "--json")
    loads = [one["load"] for one in json.loads(closed.stdout)["forecasts"]]
    assert loads == ["1 at once", "1 at once", "2 at once", "2 at once"]
    refused = run_command("rehearse", "run", trace, *options, "--at-once", "2,4")
    assert refused.exit_code == BAD_INPUT
    assert "at-once is 4, which 3 requests cannot reach; allowed: at most 3" in refused.stderr


def test_a_shipped_machine_is_named_and_said_not_to_be_measured(calibration: Measured, tmp_path: Path) -> None:
    _, trace = files(calibration, tmp_path)
    result = run_command("rehearse", "run", trace, "--machine", "h100x2-llama-70b-fp8", "--rates", "1")
    assert "not measured: 2 NVIDIA H100" in result.stderr
    unknown = run_command("rehearse", "run", trace, "--machine", "h100x3", "--rates", "1")
    assert unknown.exit_code == BAD_INPUT
    assert "machine is h100x3; allowed: a file, or a100-llama-7b, " in unknown.stderr


def test_a_forecast_shows_the_error_of_the_last_check_or_that_there_was_none(
    calibration: Measured, tmp_path: Path
) -> None:
    machine, trace = files(calibration, tmp_path)
    arguments = ("rehearse", "run", trace, "--machine", machine, "--rates", "1")
    told = run_command(*arguments)
    assert (told.exit_code, "error of the last check  none" in told.stdout) == (0, True)
    for mode in ("auto", "off"):
        run_command("rehearse", "check", trace, "--machine", machine, "--mode", mode)
    shown = run_command(*arguments).stdout
    assert "error of the last check" in shown
    assert [f"{mode}, " in shown for mode in ("auto", "off")] == [True, True]
    assert "not known: " in shown
    assert "end to end, 50 %" in shown


def test_measure_writes_a_machine_whose_forecasts_were_checked(
    tiny_family: Callable[[str, str], Path], tmp_path: Path
) -> None:
    model = ("--model", str(tiny_family("sentencepiece", "hermes")), "--max-model-len", "1024")
    few = ("--loads", "2", "--recorded", "1", "--seconds", "1", "--max-tokens", "4", "--tenant", "ide")
    result = run_command("rehearse", "measure", *model, *few, "--output", str(tmp_path))
    assert result.exit_code == 0, result.stderr
    assert "step 7 of 7" in result.stderr
    machine = Machine.from_json((tmp_path / "machine.json").read_text())
    plain, auto = (read_trace(tmp_path / f"{mode}-1.jsonl.gz") for mode in ("plain", "auto"))
    counts = {"off": len(plain.lines), "auto": len(auto.lines)}
    assert {mode: one.num_requests for mode, one in machine.checks.items()} == counts
    assert (machine.measured_tokens, machine.measured_sequences) == (512, 2)
    assert (auto.at_once, auto.lines[0].route, auto.lines[0].tenant) == (1, "/v1/chat/completions", "ide")
    assert f"auto-1.jsonl.gz   {counts['auto']} requests" in result.stdout


def test_a_machine_of_the_package_is_not_checked(calibration: Measured, tmp_path: Path) -> None:
    _, trace = files(calibration, tmp_path)
    result = run_command("rehearse", "check", trace, "--machine", "h100-llama-7b-fp8")
    assert result.exit_code == BAD_INPUT
    assert "allowed: a file" in result.stderr


def test_a_machine_from_before_there_were_checks_is_read(calibration: Measured) -> None:
    old = json.loads(calibration.machine.to_json())
    del old["checks"]
    assert Machine.from_json(json.dumps(old)).checks == {}


POLICY = """
rules:
  - name: all
    match: {}
    mode: "on"
    rollout: {stages: [50], gate: automatic}
    guardrails: [{name: errors, metric: error_rate, limit: 0.3}]
"""


def test_run_says_what_the_control_did(calibration: Measured, tmp_path: Path) -> None:
    machine, trace = files(calibration, tmp_path)
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    command = ("rehearse", "run", trace, "--machine", machine, "--rates", "1", "--policy", str(policy))
    plain, own = json.loads(run_command(*command, "--json").stdout)["forecasts"]
    assert plain["changes"] == []
    assert [(one["what"], one["at"]) for one in own["changes"]] == [("rollout.started", 0.0)]
    shown = run_command(*command).stdout
    assert "what changed" in shown
    assert "rollout.started" in shown


def test_a_trace_that_says_nothing_of_drafts_proves_nothing(calibration: Measured, tmp_path: Path) -> None:
    machine, recording = files(calibration, tmp_path)
    write_trace(tmp_path / "bare.jsonl", Trace(lines=(TraceLine(at=0.0, prompt=9, output=5),)))
    bare = str(tmp_path / "bare.jsonl")
    arguments = ("rehearse", "run", bare, "--machine", machine, "--rates", "1")
    result = run_command(*arguments)
    assert result.exit_code == UNPROVEN
    assert "says nothing of drafts" in result.stderr
    assert not run_command(*arguments, "--drafts", recording).exit_code


@pytest.mark.parametrize("rates", ["0", "a", "1,-2"])
def test_a_rate_that_is_none_is_refused(calibration: Measured, tmp_path: Path, rates: str) -> None:
    machine, trace = files(calibration, tmp_path)
    result = run_command("rehearse", "run", trace, "--machine", machine, "--rates", rates)
    assert "allowed: numbers above 0" in result.stderr
