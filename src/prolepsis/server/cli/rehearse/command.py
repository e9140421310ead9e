"""`prolepsis rehearse`: recorded traffic on a virtual clock, by the scheduler and the policy that will run."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from prolepsis.core.config import EngineConfig
from prolepsis.core.errors import ConfigError
from prolepsis.core.files import read_text
from prolepsis.core.terminal.config import Settings, listed
from prolepsis.core.terminal.documents import print_reply
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
    warn,
)

if TYPE_CHECKING:
    from prolepsis.control.policy.model import Policy
    from prolepsis.engine.rehearsal.machine import Machine
    from prolepsis.server.cli.rehearse.calibrate import Calibration
    from prolepsis.server.rehearsal.check import Compared
    from prolepsis.server.rehearsal.page import ForecastPage

app = command_group("Rehearse traffic: what speculation would do to it, by the scheduler and policy that will run.")

TraceFile = Annotated[Path, typer.Argument(help="a recording, or a trace of Mooncake, Azure or BurstGPT")]
MachineFile = Annotated[Path, typer.Option("--machine", help="a measured one, or a name of `rehearse machines`")]


@app.command("measure", epilog=EPILOG)
@configured(EngineConfig)
def measure(
    settings: Settings,
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="folder for the machine and the recordings")],
    prompts: Annotated[Path | None, typer.Option(help="JSON lines as for bench; default: a set in the package")] = None,
    rates: Annotated[str, typer.Option(help="requests a second, comma-separated; the last is only recorded")] = "1,4,2",
    requests: Annotated[int, typer.Option(min=8, help="requests at each rate")] = 48,
    max_tokens: Annotated[int, typer.Option(min=2, help="most tokens of an answer")] = 192,
) -> None:
    """Measure this machine under load, record what it did at one more rate, and check the forecast of that."""
    from prolepsis.server.rehearsal.trace import write_trace

    quiet_logs()
    per_second = [_rate(text) for text in listed(rates)]
    if len(per_second) < 2:
        raise ConfigError(f"rates is {rates!r}; allowed: two or more, as the last one is only recorded", param="rates")
    output.mkdir(parents=True, exist_ok=True)
    found = asyncio.run(_measured(settings, prompts, per_second, requests, max_tokens))
    (output / "machine.json").write_text(found.machine.to_json())
    for name, trace in (("plain", found.plain), ("auto", found.auto)):
        write_trace(output / f"{name}.jsonl.gz", trace)
    print_facts([("machine", output / "machine.json"), ("recordings", "plain.jsonl.gz, auto.jsonl.gz in its folder")])
    note("check the forecast: prolepsis rehearse check RECORDING --machine FILE")


async def _measured(
    settings: Settings, prompts: Path | None, rates: Sequence[float], requests: int, max_tokens: int
) -> "Calibration":
    from prolepsis.engine.build import build_engine
    from prolepsis.engine.models.load import load_model
    from prolepsis.engine.rehearsal.measure import StepMeter
    from prolepsis.engine.start import loading
    from prolepsis.engine.thread import ThreadEngineClient
    from prolepsis.server.cli.bench.prompts import encode_prompts, load_prompts
    from prolepsis.server.cli.rehearse.calibrate import OfferedLoad, calibrate

    meter = StepMeter()
    with loading():
        target = load_model(settings.engine)
        client = ThreadEngineClient(build_engine(settings.engine, meter, target=target))
    encoded = encode_prompts(load_prompts(prompts), target.tokenizer)
    loads = [
        OfferedLoad(prompts=encoded, per_second=rate, num_requests=requests, max_tokens=max_tokens, seed=number)
        for number, rate in enumerate(rates)
    ]
    try:
        return await calibrate(client, target.model, meter, loads, note)
    finally:
        await client.close()


@app.command("check", epilog=EPILOG)
def check(
    trace: TraceFile,
    *,
    machine: MachineFile,
    mode: Annotated[str, typer.Option(help="how the recording was made: auto or off")] = "auto",
    as_json: AsJson = False,
) -> None:
    """Forecast a recording, and print how wrong the forecast is."""
    from prolepsis.server.rehearsal.check import check as held_against
    from prolepsis.server.rehearsal.rehearsal import RehearsedServer, rehearse
    from prolepsis.server.rehearsal.trace import read_trace

    quiet_logs("error")  # what is rehearsed sheds load
    recorded, measured = read_trace(trace), _machine(machine)
    compared = held_against(recorded, rehearse(recorded, RehearsedServer(machine=measured, mode=_mode(mode))))
    if as_json:
        print_json([{**asdict(one), "error": one.error} for one in compared])
        return
    heading = ["figure", "of requests", "measured", "forecast", "error"]
    print_table("forecast against what was measured", heading, [_compared(one) for one in compared])


def _compared(one: "Compared") -> list[str]:
    of = "all" if one.share is None else f"{100 * one.share:.0f} %"
    values = [_ms(value) if one.unit else f"{value:.2f}" for value in (one.measured, one.forecast)]
    return [one.what, of, *values, f"{100 * one.error:+.1f} %"]


@app.command("run", epilog=EPILOG)
def run(
    trace: TraceFile,
    *,
    machine: MachineFile,
    policy: Annotated[Path | None, typer.Option(help="a policy file; default: speculation where it pays")] = None,
    rates: Annotated[str, typer.Option(help="times the arrivals of the trace, comma-separated")] = "0.5,1,2,4",
    drafts: Annotated[Path | None, typer.Option(help="a recording whose drafts stand for a trace without any")] = None,
    seed: Annotated[int, typer.Option(help="of which drafts stand for which request, and of the times of passes")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="so many seeds, from --seed on, give lowest and highest")] = 1,
    lengths: Annotated[float, typer.Option(min=0.001, help="times the lengths of the trace")] = 1.0,
    requests: Annotated[int | None, typer.Option(min=1, help="only so many requests; default: all")] = None,
    goal_first_ms: Annotated[float, typer.Option(min=0, help="latest first token that counts for goodput")] = 2000.0,
    goal_token_ms: Annotated[float, typer.Option(min=0, help="longest time a token that counts")] = 100.0,
    price_per_hour: Annotated[float | None, typer.Option(min=0, help="of the device, with its overheads")] = None,
    html: Annotated[Path | None, typer.Option(help="write a page with pictures to this file")] = None,
    as_json: AsJson = False,
) -> None:
    """Forecast a trace at several loads, plain and by the policy, and say where speculation stops paying."""
    from prolepsis.server.rehearsal.forecast import LatencyGoal, forecasts
    from prolepsis.server.rehearsal.page import ForecastPage
    from prolepsis.server.rehearsal.rehearsal import RehearsedServer
    from prolepsis.server.rehearsal.trace import read_trace

    quiet_logs("error")  # what is rehearsed sheds load
    played = read_trace(trace).scaled(lengths=lengths, most=requests)
    donors = None if drafts is None else read_trace(drafts)
    setting = RehearsedServer(machine=_machine(machine), policy=_policy(policy))
    goal = LatencyGoal(first_token_s=goal_first_ms / 1000.0, per_token_s=goal_token_ms / 1000.0)
    factors, by_seed = [_rate(text) for text in listed(rates)], []
    for number in range(seed, seed + seeds):
        drawn = played if donors is None else played.with_drafts_of(donors, number)
        loads = [(f"{factor:g}x", drawn.scaled(rate=factor)) for factor in factors]
        by_seed.append(forecasts(loads, replace(setting, seed=number), goal))
    page = ForecastPage(
        by_seed=by_seed,
        trace=trace.name,
        machine_name=machine.name,
        policy=policy.name if policy else None,
        requests=played.lines,
        machine=setting.machine,
        goal=goal,
        price_per_hour=price_per_hour,
    )
    if html is not None:
        html.write_text(page.html())
    _print_forecast(page, as_json=as_json)
    if donors is None and not any(line.drafts for line in played.lines):
        warn(
            "the trace says nothing of drafts, so speculation gains nothing in it; --drafts takes those of a recording"
        )
        raise typer.Exit(UNPROVEN)


def _print_forecast(page: "ForecastPage", *, as_json: bool) -> None:
    if page.machine.published:
        warn(f"not measured: {page.machine.published}")
    if as_json:
        every = [asdict(one) for pairs in page.by_seed for pair in pairs for one in pair]
        print_json({"forecasts": every, "stops_paying": page.end, "rules": page.rules})
        return
    print_table("forecast", *page.table())
    print_table("traffic classes", *page.class_table())
    print_facts([("speculation stops paying", page.end), ("error of this forecast", page.checked or "never checked")])


@app.command("machines", epilog=EPILOG)
def machines(as_json: AsJson = False) -> None:
    """List the machines that come with the package, their sources, and how far they are from published times."""
    from prolepsis.engine.rehearsal.roofline import shipped

    columns, known = ("name", "pass", "published_ms", "roofline_ms"), shipped()
    times = [
        dict(zip(columns, (name, one.what, one.ms, round(machine.ms(one.tokens, one.context), 2)), strict=True))
        for name, machine in known.items()
        for one in machine.times
    ]
    sources = {name: f"{one.device}, {one.model}, {one.engine}: {' '.join(one.sources)}" for name, one in known.items()}
    print_reply({"times": times, "sources": sources}, {"times": columns}, as_json=as_json)


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


def _mode(text: str) -> Literal["auto", "off"]:
    if text == "off":
        return "off"
    if text == "auto":
        return "auto"
    raise ConfigError(f"mode is {text!r}; allowed: auto, off", param="mode")


def _machine(file: Path) -> "Machine":
    from prolepsis.engine.rehearsal.roofline import read_machine, shipped

    if named := shipped().get(str(file)):
        return named.machine()
    try:
        return read_machine(read_text(file, "machine"))
    except ValueError as error:
        raise ConfigError(f"{file} is no measured machine: {error}", param="machine") from error


def _policy(file: Path | None) -> "Policy | None":
    from prolepsis.control.policy.check import NOTHING_KNOWN, usable_policy

    return None if file is None else usable_policy(read_text(file, "policy"), str(file), NOTHING_KNOWN)
