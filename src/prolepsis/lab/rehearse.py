"""`prolepsis rehearse`: recorded traffic on a virtual clock, by the scheduler and the policy that will run."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from prolepsis.control.audit.commands.acts import actor, record_act
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.config import EngineConfig, ServerConfig
from prolepsis.core.errors import ConfigError
from prolepsis.core.files import read_text, write_output, write_whole
from prolepsis.core.terminal.admin import Key, Url, ask
from prolepsis.core.terminal.config import Settings, listed
from prolepsis.core.terminal.flags import configured
from prolepsis.core.terminal.output import (
    UNPROVEN,
    AsJson,
    command_group,
    note,
    print_facts,
    print_json,
    print_table,
    quiet_logs,
    shown_time,
    stderr,
    warn,
)
from prolepsis.lab.measure.arrivals import GoalFirstMs, GoalTokenMs, LatencyGoal, load_of
from prolepsis.lab.rehearsal.trace import Trace, read_trace, write_trace

if TYPE_CHECKING:
    from prolepsis.control.policy.model import Policy
    from prolepsis.lab.rehearsal.calibrate import LoadRecording
    from prolepsis.lab.rehearsal.check import Compared
    from prolepsis.lab.rehearsal.forecast import Pair
    from prolepsis.lab.rehearsal.page import ForecastPage
    from prolepsis.lab.virtual_engine.machine import Machine

app = command_group("Rehearse traffic: what speculation would do to it, by the scheduler and policy that will run.")

TraceFile = Annotated[
    Path, typer.Argument(help="a recording, or a trace of Mooncake, Azure, BurstGPT, AIPerf or GuideLLM")
]
MachineFile = Annotated[Path, typer.Option("--machine", help="what `rehearse measure` wrote, or one of the package")]


_RECORDING, _POLL_S = "/admin/recording", 0.5


@app.command("record")
def record(
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="file of the trace: JSON lines in gzip")],
    seconds: Annotated[float, typer.Option(min=0.1, help="requests that arrive in this time")] = 600.0,
    requests: Annotated[int, typer.Option(min=1, help="most requests")] = 1000,
    share: Annotated[float, typer.Option(min=0, max=1, help="share of the requests whose drafts are recorded")] = 1.0,
    url: Url,
    key: Key = None,
) -> None:
    """Record a running server's traffic: times, lengths, shapes of drafts, no text. Needs the role admin."""
    from rich.progress import BarColumn, Progress, TimeRemainingColumn

    if output.suffix != ".gz" or not output.parent.is_dir():
        raise ConfigError(f"output is {output}; allowed: a name that ends with .gz, in a folder", param="output")
    ask(url, key, "POST", _RECORDING, {"seconds": seconds, "requests": requests, "share": share})
    try:
        with Progress("{task.description}", BarColumn(), TimeRemainingColumn(), console=stderr()) as progress:
            bar, is_over = progress.add_task("", total=seconds), False
            while not is_over:
                now = ask(url, key, "GET", _RECORDING)
                text = f"{now['num_requests']} requests recorded, {now['num_running']} running"
                progress.update(bar, description=text, completed=seconds - now["remaining_s"])
                is_over = not now["remaining_s"] and not now["num_running"]
                time.sleep(0.0 if is_over else _POLL_S)
    finally:  # interrupted too: the file has what ended so far
        write_whole(output, ask(url, key, "GET", f"{_RECORDING}/file", read=lambda reply: reply.content))
        last = ask(url, key, "DELETE", _RECORDING)
        print_facts([("recording", output), ("requests", last["num_requests"]), ("left out", last["num_left_out"])])


@app.command("measure")
@configured(EngineConfig)
def measure(
    settings: Settings,
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="folder for the machine and the recordings")],
    prompts: Annotated[Path | None, typer.Option(help="JSON lines as for bench; default: a set in the package")] = None,
    loads: Annotated[str, typer.Option(help="to measure: requests at once (8) or a second (2/s)")] = "1,4,24,1/s",
    recorded: Annotated[str, typer.Option(help="loads to record, by which forecasts are checked")] = "2,8,16",
    seconds: Annotated[
        float | None,
        typer.Option(min=1, help="for each load and mode; default: 20, and recordings until 20 requests of each class"),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=2, help="most tokens of an answer")] = 192,
    route: Annotated[str, typer.Option(help="route that recorded requests have")] = "/v1/chat/completions",
    tenant: Annotated[str, typer.Option(help="tenant that recorded requests have; default: none")] = "",
) -> None:
    """Measure this machine under load, record what it does at other loads, and check the forecasts of those.

    What is measured is in the folder at once: Ctrl-C loses nothing.
    """
    from prolepsis.engine.build import build_engine
    from prolepsis.engine.models.load import load_model
    from prolepsis.engine.start import loading
    from prolepsis.lab.measure.prompts import encode_prompts, load_prompts
    from prolepsis.lab.rehearsal.calibrate import Calibration, OfferedLoad, measured_passes
    from prolepsis.lab.rehearsal.check import checked
    from prolepsis.lab.rehearsal.rehearsal import RehearsedServer

    quiet_logs()
    wanted = [[load_of(text) for text in listed(texts)] for texts in (loads, recorded)]
    output.mkdir(parents=True, exist_ok=True)
    with loading():
        target = load_model(settings.engine)
    prompt_set, each_s = encode_prompts(load_prompts(prompts), target.tokenizer), seconds or 20.0
    measured_at, recorded_at = (
        [
            OfferedLoad(load, prompt_set, each_s, max_tokens, seed=first + number, route=route, tenant=tenant)
            for number, load in enumerate(part)
        ]
        for first, part in zip((0, 100), wanted, strict=True)
    )
    recorded_at = recorded_at if seconds else [offered.for_advice() for offered in recorded_at]
    note(f"timing passes of up to {settings.engine.max_step_tokens} tokens, by which it is known how long all takes")
    files: dict[str, str] = {}
    try:
        passes = measured_passes(target.model, settings.engine.max_step_tokens)
        calibration = Calibration(
            lambda meter: build_engine(settings.engine, meter, target=target), note, partial(_keep, output, files)
        )
        machine, recordings = asyncio.run(calibration.run(passes, measured_at, recorded_at))
        note("checking the forecasts")
        quiet_logs("error")  # what is rehearsed sheds load
        for mode in dict.fromkeys(recording.mode for recording in recordings):
            traces = [recording.trace for recording in recordings if recording.mode == mode]
            machine, _ = checked(RehearsedServer(machine=machine, mode=mode), traces)
        _keep(output, files, machine)
    finally:  # interrupted too
        print_facts(list(files.items()) or [("measured", "nothing")])
    _print_errors(machine)


def _keep(folder: Path, files: dict[str, str], kept: "Machine | LoadRecording") -> None:
    """Write what was measured to its file in the folder, and enter what the file has in `files`."""
    from prolepsis.lab.rehearsal.advice import FEWEST_REQUESTS
    from prolepsis.lab.rehearsal.calibrate import LoadRecording

    if isinstance(kept, LoadRecording):
        write_trace(folder / kept.file, kept.trace)
        number = len(kept.trace.lines)
        files[kept.file] = f"{number} requests" + ", too few for advice" * (number < FEWEST_REQUESTS)
    else:
        write_output(folder / "machine.json", kept.to_json().encode())
        files["machine.json"] = f"in {folder}, its forecasts {'' if kept.checks else 'not '}checked"


@app.command("check")
def check(
    recordings: Annotated[list[Path], typer.Argument(metavar="RECORDING...", help="of one mode")],
    *,
    machine: MachineFile,
    mode: Annotated[Literal["auto", "off"], typer.Option(help="how they were made")] = "auto",
    policy: Annotated[Path | None, typer.Option(help="the policy file that the recorded server had")] = None,
    as_json: AsJson = False,
) -> None:
    """Forecast recordings, print how wrong the forecasts are, and keep that in the machine's file."""
    from prolepsis.lab.rehearsal.check import checked
    from prolepsis.lab.rehearsal.rehearsal import RehearsedServer

    quiet_logs("error")  # what is rehearsed sheds load
    if not machine.is_file():
        raise ConfigError(f"machine is {machine}; allowed: a file, where the errors are kept", param="machine")
    setting = RehearsedServer(machine=machine_of(machine), mode=mode, policy=policy_of(policy))
    traces = {str(file): read_trace(file) for file in recordings}
    for file, trace in traces.items():
        if trace.machine != setting.machine.fingerprint:
            warn(f"{file} is of another model or build than {machine}, or does not say of which")
    measured, compared = checked(setting, list(traces.values()))
    write_output(machine, measured.to_json().encode(), "machine")
    record_act(AuditEvent(actor=actor(), action="rehearsal.checked", subject=machine.name))
    by_file = dict(zip(traces, compared, strict=True))
    if as_json:
        print_json({file: [{**asdict(row), "error": row.error} for row in of] for file, of in by_file.items()})
        return
    for file, of in by_file.items():
        heading = ["figure", "measured", "forecast", "error"]
        print_table(f"{file}: forecast against what was measured", heading, [_compared(row) for row in of])


def _print_errors(machine: "Machine") -> None:
    """Print how wrong forecasts were in the last check of each mode: of its recordings the median."""
    checks, errors = machine.checks.items(), [last.errors for last in machine.checks.values()]
    heading = [f"{mode}, {shown_time(last.at)[:10]}, {last.num_requests} requests" for mode, last in checks]
    figures = [figure for figure in errors[0] if all(figure in of_mode for of_mode in errors)] if errors else []
    rows = [[figure, *(f"{100 * of_mode[figure]:+.1f} %" for of_mode in errors)] for figure in figures]
    print_table("error of the last check", ["figure", *heading], rows)


def _compared(row: "Compared") -> list[str]:
    values = [_ms(value) if row.unit else f"{value:.2f}" for value in (row.measured, row.forecast)]
    return [row.figure, *values, f"{100 * row.error:+.1f} %"]


@app.command("run")
def run(
    trace: TraceFile,
    *,
    machine: MachineFile,
    policy: Annotated[Path | None, typer.Option(help="a policy file; default: speculation where it pays")] = None,
    rates: Annotated[str, typer.Option(help="times the arrivals of the trace, comma-separated")] = "0.5,1,2,4",
    flags: Annotated[Path | None, typer.Option(help="a flag file, for rules that ask flags")] = None,
    drafts: Annotated[Path | None, typer.Option(help="a recording whose drafts stand for a trace without any")] = None,
    seed: Annotated[int, typer.Option(help="of which drafts stand for which request, and of the times of passes")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="so many seeds, from --seed on, give lowest and highest")] = 1,
    requests: Annotated[int | None, typer.Option(min=1, help="only so many requests; default: all")] = None,
    goal_first_ms: GoalFirstMs = 2000.0,
    goal_token_ms: GoalTokenMs = 100.0,
    at_once: Annotated[
        str | None, typer.Option(help="requests at once, comma-separated, in place of the rates")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="write a page with pictures to this file")] = None,
    fully_on: Annotated[bool, typer.Option("--fully-on", help="as if the rollouts of the policy were over")] = False,
    as_json: AsJson = False,
) -> None:
    """Forecast a trace at several loads, plain and by the policy, and say where speculation stops paying."""
    from prolepsis.lab.rehearsal.control import without_rollouts
    from prolepsis.lab.rehearsal.forecast import forecasts
    from prolepsis.lab.rehearsal.page import ForecastPage
    from prolepsis.lab.rehearsal.rehearsal import RehearsedServer

    quiet_logs("error")  # what is rehearsed sheds load
    measured = machine_of(machine)
    played = read_trace(trace).scaled(most=requests)
    donors = None if drafts is None else read_trace(drafts)
    given = policy_of(policy)
    given = without_rollouts(given) if given is not None and fully_on else given
    setting = RehearsedServer(machine=measured, server=ServerConfig(flags=flags), policy=given)
    goal = LatencyGoal.of_ms(goal_first_ms, goal_token_ms)

    def seeded(number: int) -> "Sequence[Pair]":
        drawn = played if donors is None else played.with_drafts_of(donors, number)
        return forecasts(_loads(drawn, rates, at_once), replace(setting, seed=number), goal)

    page = ForecastPage(
        by_seed=[seeded(number) for number in range(seed, seed + seeds)],
        trace=trace.name,
        machine_name=machine.name,
        policy=policy.name if policy else None,
        requests=played.lines,
        machine=measured,
        goal=goal,
    )
    if html is not None:
        write_output(html, page.html().encode(), "html")
    _print_forecast(page, as_json=as_json)
    if donors is None and not any(line.drafts for line in played.lines):
        warn("the trace says nothing of drafts, so nothing is gained; --drafts takes those of a recording")
        raise typer.Exit(UNPROVEN)


def _print_forecast(page: "ForecastPage", *, as_json: bool) -> None:
    if page.machine.published:
        warn(f"not measured: {page.machine.published}")
    if as_json:
        every = [asdict(forecast) for pairs in page.by_seed for pair in pairs for forecast in pair]
        checks = {mode: asdict(last) for mode, last in page.machine.checks.items()}
        advice = {name: asdict(advised) for name, advised in page.advice.items()}
        print_json({"forecasts": every, "stops_paying": page.end, "advice": advice, "checks": checks})
        return
    print_table("forecast", *page.table())
    print_table("traffic classes", *page.class_table())
    print_facts([("speculation stops paying", page.end)])
    changes = [
        [own.load, f"{change.at:.1f} s", change.what, change.subject, change.why]
        for pairs in page.by_seed
        for _, own in pairs
        for change in own.changes
    ]
    if changes:
        print_table("what changed", ["load", "after", "what", "of", "why"], changes, in_order=True)
    _print_errors(page.machine)


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


def _loads(trace: Trace, rates: str, at_once: str | None) -> list[tuple[str, Trace]]:
    if at_once is None:
        return [(f"{rate:g}x", trace.scaled(rate=rate)) for rate in map(_rate, listed(rates))]
    numbers, most = [max(1, round(_rate(text))) for text in listed(at_once)], len(trace.lines)
    if max(numbers) > most:
        raise ConfigError(
            f"at-once is {max(numbers)}, which {most} requests cannot reach; allowed: at most {most}", param="at_once"
        )
    return [(f"{number} at once", replace(trace, at_once=number)) for number in numbers]


def machine_of(file: Path) -> "Machine":
    """Return the machine of a file, or one that comes with the package; raises `ConfigError` for any other."""
    from prolepsis.lab.virtual_engine.roofline import read_machine, shipped

    if named := (known := shipped()).get(str(file)):
        return named.machine()
    if not file.is_file():
        raise ConfigError(f"machine is {file}; allowed: a file, or {', '.join(known)}", param="machine")
    try:
        return read_machine(read_text(file, "machine"))
    except ValueError as error:
        raise ConfigError(f"{file} is no measured machine: {error}", param="machine") from error


def policy_of(file: Path | None) -> "Policy | None":
    """Return the policy of a file that can be used; None: there is none."""
    from prolepsis.control.policy.check import NOTHING_KNOWN, usable_policy

    return None if file is None else usable_policy(read_text(file, "policy"), str(file), NOTHING_KNOWN)
