"""`prolepsis rehearse`: recorded traffic on a virtual clock, by the scheduler and the policy that will run."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from prolepsis.control.audit.commands.acts import actor, record_act
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.config import EngineConfig, ServerConfig
from prolepsis.core.errors import ConfigError
from prolepsis.core.files import read_text, write_whole
from prolepsis.core.terminal.config import Settings, listed
from prolepsis.core.terminal.flags import configured
from prolepsis.core.terminal.output import (
    EPILOG,
    UNPROVEN,
    AsJson,
    command_group,
    note,
    print_facts,
    print_json,
    print_table,
    quiet_logs,
    shown_time,
    warn,
)
from prolepsis.server.cli.rehearse.record import record

if TYPE_CHECKING:
    from prolepsis.control.policy.model import Policy
    from prolepsis.engine.rehearsal.machine import Machine
    from prolepsis.server.cli.rehearse.calibrate import LoadRecording
    from prolepsis.server.rehearsal.check import Compared
    from prolepsis.server.rehearsal.control import ControlChange
    from prolepsis.server.rehearsal.forecast import LoadForecast
    from prolepsis.server.rehearsal.load import TrafficLoad

app = command_group("Rehearse traffic: what speculation would do to it, by the scheduler and policy that will run.")
app.command("record", epilog=EPILOG)(record)

TraceFile = Annotated[Path, typer.Argument(help="a recording, or a trace of Mooncake, Azure or BurstGPT")]
MachineFile = Annotated[Path, typer.Option("--machine", help="what `rehearse measure` wrote")]


@app.command("measure", epilog=EPILOG)
@configured(EngineConfig)
def measure(
    settings: Settings,
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="folder for the machine and the recordings")],
    prompts: Annotated[Path | None, typer.Option(help="JSON lines as for bench; default: a set in the package")] = None,
    loads: Annotated[str, typer.Option(help="to measure: requests at once (8) or a second (2/s)")] = "1,4,16,1/s",
    recorded: Annotated[str, typer.Option(help="loads to record, by which forecasts are checked")] = "2,8,24",
    seconds: Annotated[float, typer.Option(min=1, help="for each load and mode")] = 20.0,
    max_tokens: Annotated[int, typer.Option(min=2, help="most tokens of an answer")] = 192,
) -> None:
    """Measure this machine under load, record what it does at other loads, and check the forecasts of those."""
    from prolepsis.server.rehearsal.check import checked
    from prolepsis.server.rehearsal.load import load_of
    from prolepsis.server.rehearsal.rehearsal import RehearsedServer
    from prolepsis.server.rehearsal.trace import write_trace

    quiet_logs()
    measured_at, recorded_at = ([load_of(text) for text in listed(texts)] for texts in (loads, recorded))
    output.mkdir(parents=True, exist_ok=True)
    machine, recordings = asyncio.run(_measured(settings, prompts, (measured_at, recorded_at), seconds, max_tokens))
    note("checking the forecasts")
    quiet_logs("error")  # what is rehearsed sheds load
    for mode in dict.fromkeys(one.mode for one in recordings):
        traces = [one.trace for one in recordings if one.mode == mode]
        machine, _ = checked(RehearsedServer(machine=machine, mode=mode), traces)
    _write(output / "machine.json", machine)
    files = {f"{'plain' if one.mode == 'off' else one.mode}-{one.load.name}.jsonl.gz": one for one in recordings}
    for name, one in files.items():
        write_trace(output / name, one.trace)
    print_facts([("machine", output / "machine.json"), ("recordings in its folder", ", ".join(files))])
    _print_errors(machine)


async def _measured(
    settings: Settings,
    prompts: Path | None,
    loads: tuple[Sequence["TrafficLoad"], Sequence["TrafficLoad"]],
    seconds: float,
    max_tokens: int,
) -> "tuple[Machine, list[LoadRecording]]":
    from prolepsis.engine.build import build_engine
    from prolepsis.engine.models.load import load_model
    from prolepsis.engine.start import loading
    from prolepsis.server.cli.bench.prompts import encode_prompts, load_prompts
    from prolepsis.server.cli.rehearse.calibrate import Calibration, OfferedLoad

    with loading():
        target = load_model(settings.engine)
    encoded = encode_prompts(load_prompts(prompts), target.tokenizer)
    measured, recorded = (
        [
            OfferedLoad(load=load, prompts=encoded, seconds=seconds, max_tokens=max_tokens, seed=first + number)
            for number, load in enumerate(part)
        ]
        for first, part in zip((0, 100), loads, strict=True)
    )
    calibration = Calibration(lambda meter: build_engine(settings.engine, meter, target=target), note)
    return await calibration.run(target.model, measured, recorded)


@app.command("check", epilog=EPILOG)
def check(
    recordings: Annotated[list[Path], typer.Argument(metavar="RECORDING...", help="of one mode")],
    *,
    machine: MachineFile,
    mode: Annotated[Literal["auto", "off"], typer.Option(help="how they were made")] = "auto",
    policy: Annotated[Path | None, typer.Option(help="the policy file that the recorded server had")] = None,
    as_json: AsJson = False,
) -> None:
    """Forecast recordings, print how wrong the forecasts are, and keep that in the machine's file."""
    from prolepsis.server.rehearsal.check import checked
    from prolepsis.server.rehearsal.rehearsal import RehearsedServer
    from prolepsis.server.rehearsal.trace import read_trace

    quiet_logs("error")  # what is rehearsed sheds load
    setting = RehearsedServer(machine=machine_of(machine), mode=mode, policy=policy_of(policy))
    traces = {str(file): read_trace(file) for file in recordings}
    for file, trace in traces.items():
        if trace.machine != setting.machine.fingerprint:
            warn(f"{file} is of another model or build than {machine}, or does not say of which")
    measured, compared = checked(setting, list(traces.values()))
    _write(machine, measured)
    record_act(AuditEvent(actor=actor(), action="rehearsal.checked", subject=machine.name))
    found = dict(zip(traces, compared, strict=True))
    if as_json:
        print_json({file: [{**asdict(one), "error": one.error} for one in of] for file, of in found.items()})
        return
    for file, of in found.items():
        heading = ["figure", "measured", "forecast", "error"]
        print_table(f"{file}: forecast against what was measured", heading, [_compared(one) for one in of])


def _write(file: Path, machine: "Machine") -> None:
    try:
        write_whole(file, machine.to_json().encode())
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}", param="machine") from None


def _print_errors(machine: "Machine") -> None:
    """Print how wrong forecasts were in the last check of each mode: of its recordings the median."""
    checks, errors = machine.checks.items(), [one.errors for one in machine.checks.values()]
    heading = [f"{mode}, {shown_time(one.at)[:10]}, {one.num_requests} requests" for mode, one in checks]
    figures = [figure for figure in errors[0] if all(figure in one for one in errors)] if errors else []
    rows = [[figure, *(f"{100 * one[figure]:+.1f} %" for one in errors)] for figure in figures]
    print_table("error of the last check", ["figure", *heading], rows)


def _compared(one: "Compared") -> list[str]:
    values = [_ms(value) if one.unit else f"{value:.2f}" for value in (one.measured, one.forecast)]
    return [one.figure, *values, f"{100 * one.error:+.1f} %"]


@app.command("run", epilog=EPILOG)
def run(
    trace: TraceFile,
    *,
    machine: MachineFile,
    policy: Annotated[Path | None, typer.Option(help="a policy file; default: speculation where it pays")] = None,
    rates: Annotated[str, typer.Option(help="times the arrivals of the trace, comma-separated")] = "0.5,1,2,4",
    flags: Annotated[Path | None, typer.Option(help="a flag file, for rules that ask flags")] = None,
    drafts: Annotated[Path | None, typer.Option(help="a recording whose drafts stand for a trace without any")] = None,
    seed: Annotated[int, typer.Option(help="of which drafts stand for which request, and of the times of passes")] = 0,
    lengths: Annotated[float, typer.Option(min=0.001, help="times the lengths of the trace")] = 1.0,
    requests: Annotated[int | None, typer.Option(min=1, help="only so many requests; default: all")] = None,
    goal_first_ms: Annotated[float, typer.Option(min=0, help="latest first token that counts for goodput")] = 2000.0,
    goal_token_ms: Annotated[float, typer.Option(min=0, help="longest time a token that counts")] = 100.0,
    fully_on: Annotated[bool, typer.Option("--fully-on", help="as if the rollouts of the policy were over")] = False,
    unchecked: Annotated[bool, typer.Option("--unchecked", help="also where no forecast was ever checked")] = False,
    as_json: AsJson = False,
) -> None:
    """Forecast a trace at several loads, plain and by the policy, and say where speculation stops paying."""
    from prolepsis.server.rehearsal.control import without_rollouts
    from prolepsis.server.rehearsal.forecast import forecasts, stops_paying
    from prolepsis.server.rehearsal.goal import LatencyGoal
    from prolepsis.server.rehearsal.rehearsal import RehearsedServer
    from prolepsis.server.rehearsal.trace import read_trace

    quiet_logs("error")  # what is rehearsed sheds load
    measured = machine_of(machine)
    if not measured.checks and not unchecked:
        allowed = f"allowed: after prolepsis rehearse check RECORDING --machine {machine}, or with --unchecked"
        raise ConfigError(f"no forecast of {machine} was ever checked; {allowed}", param="machine")
    played = read_trace(trace).scaled(lengths=lengths, most=requests)
    if drafts is not None:
        played = played.with_drafts_of(read_trace(drafts), seed)
    server = ServerConfig(flags=flags)
    given = policy_of(policy)
    given = without_rollouts(given) if given is not None and fully_on else given
    setting = RehearsedServer(machine=measured, server=server, policy=given, seed=seed)
    goal = LatencyGoal(first_token_s=goal_first_ms / 1000.0, per_token_s=goal_token_ms / 1000.0)
    pairs = forecasts(played, setting, [_rate(text) for text in listed(rates)], goal)
    end = stops_paying(pairs)
    if as_json:
        shown = {"forecasts": [asdict(one) for pair in pairs for one in pair], "stops_paying_at": end and asdict(end)}
        print_json({**shown, "checks": {mode: asdict(one) for mode, one in measured.checks.items()}})
    else:
        print_table("forecast", _HEAD, [_row(one) for pair in pairs for one in pair])
        print_facts([("speculation stops paying", _end(end))])
        if changes := [_changed(own, change) for _, own in pairs for change in own.changes]:
            print_table("what the control did", ["arrivals", "after", "what", "of", "why"], changes, in_order=True)
        _print_errors(measured)
    if not any(line.drafts for line in played.lines):
        warn(
            "the trace says nothing of drafts, so speculation gains nothing in it; --drafts takes those of a recording"
        )
        raise typer.Exit(UNPROVEN)


_HEAD = [
    "arrivals",
    "mode",
    "at once",
    "tokens/s",
    "a pass",
    "first p50",
    "p95",
    "a token p50",
    "p95",
    "whole p50",
    "p95",
    "refused",
]


def _row(one: "LoadForecast") -> list[str]:
    times = one.percentiles.values()
    shown = [_ms(time[share]) for time in times for share in ("p50", "p95")]
    return [
        f"{one.rate:g}x ({one.per_second:.2f}/s)",
        one.mode,
        f"{one.num_at_once:.1f}",
        f"{one.tokens_per_second:.0f}",
        f"{one.tokens_a_pass:.2f}",
        *shown,
        str(one.num_refused),
    ]


def _changed(forecast: "LoadForecast", change: "ControlChange") -> list[str]:
    return [f"{forecast.rate:g}x", f"{change.at:.1f} s", change.what, change.subject, change.why]


def _end(end: "LoadForecast | None") -> str:
    if end is None:
        return "at none of these loads"
    return f"at {end.rate:g}x the arrivals, with {end.num_at_once:.1f} requests at once"


def _ms(seconds: float) -> str:
    return f"{1000.0 * seconds:.0f} ms" if seconds >= 0.1 else f"{1000.0 * seconds:.1f} ms"


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0.0 < rate < 1e6:
        raise ConfigError(f"rates holds {text!r}; allowed: numbers above 0", param="rates")
    return rate


def machine_of(file: Path) -> "Machine":
    """Return the machine of a file; raises `ConfigError` for any other."""
    from prolepsis.engine.rehearsal.machine import Machine

    try:
        return Machine.from_json(read_text(file, "machine"))
    except ValueError as error:
        raise ConfigError(f"{file} is no measured machine: {error}", param="machine") from error


def policy_of(file: Path | None) -> "Policy | None":
    """Return the policy of a file that can be used; None: there is none."""
    from prolepsis.control.policy.check import NOTHING_KNOWN, usable_policy

    return None if file is None else usable_policy(read_text(file, "policy"), str(file), NOTHING_KNOWN)
