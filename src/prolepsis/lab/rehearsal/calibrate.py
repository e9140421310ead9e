"""Measures a machine while it answers prompts under load, plain and speculating, and records what it did."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, islice

from prolepsis.core.ask import ask
from prolepsis.core.messages import ApplyPlan
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import GenerateRequest, SamplingParams, SpecMode, SpeculationChoice
from prolepsis.engine.models.protocol import TargetModel
from prolepsis.engine.profile import measure
from prolepsis.engine.step import Engine
from prolepsis.engine.thread import ThreadEngineClient
from prolepsis.lab.measure.arrivals import TrafficLoad, arriving, in_flight
from prolepsis.lab.measure.contenders import Notify
from prolepsis.lab.measure.prompts import EncodedPrompt
from prolepsis.lab.rehearsal.record import BlockNumbers, trace_line
from prolepsis.lab.rehearsal.trace import Trace, TraceLine
from prolepsis.lab.virtual_engine.machine import Machine
from prolepsis.lab.virtual_engine.measure import MeasuredSteps, StepMeter

PASS_TOKENS = (1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 64, 128, 256, 512)
"""The engine's own profile ends with 64: it need not predict how long prompts take."""
MODES: tuple[SpecMode, ...] = ("off", "auto")
_ROUNDS = 2
"""Times that each load is measured, with the recordings between them: machines are not the same all the time."""

_WARM_UP_S = 1.0
_AT_ONCE = 8
"""Of a survey of random arrivals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedLoad:
    """Requests for some time, with answers of random lengths."""

    load: TrafficLoad
    prompts: Sequence[EncodedPrompt]
    seconds: float  # those that were asked for until then are awaited
    max_tokens: int = 256
    seed: int = 0

    def requests(self, mode: SpecMode, name: str) -> Iterator[tuple[float, GenerateRequest]]:
        """Yield arrivals (seconds) and requests; lengths are lognormal with a median of a third of `max_tokens`.

        Prompts come in rounds, each in its own scope: a prompt that comes again does not find its answer.
        """
        chance, at, prompts = random.Random(self.seed), 0.0, list[EncodedPrompt]()
        for number in count():
            prompts = prompts or chance.sample(self.prompts, len(self.prompts))
            at += chance.expovariate(self.load.per_second) if self.load.per_second else 0.0
            length = max(2, min(self.max_tokens, round(self.max_tokens / 3 * chance.lognormvariate(0.0, 0.7))))
            yield (
                at,
                GenerateRequest(
                    request_id=f"{name}-{number}",
                    prompt_token_ids=prompts.pop().token_ids,
                    params=SamplingParams(temperature=0.0, max_tokens=length),
                    cache_salt=f"{name}-{number // len(self.prompts)}",
                    speculation=SpeculationChoice(mode),
                    records_drafts=mode != "off",
                ),
            )


async def record(client: ThreadEngineClient, offered: OfferedLoad, mode: SpecMode, name: str) -> Trace:
    """Ask for the requests of a load when their time comes; return what was answered."""
    loop, blocks = asyncio.get_running_loop(), BlockNumbers()
    begin = loop.time()

    async def answered(request: GenerateRequest) -> TraceLine:
        at, answer = loop.time() - begin, await ask(client, request)
        return trace_line(request, answer.token_ids, answer.stats, blocks, at)

    jobs = ((at, partial(answered, request)) for at, request in offered.requests(mode, name))
    lines = await arriving(jobs, at_once=offered.load.at_once, seconds=offered.seconds)
    return Trace(lines=tuple(lines), machine=client.info.fingerprint, at_once=offered.load.at_once)


async def surveyed(client: ThreadEngineClient, offered: OfferedLoad, trace: Trace) -> Trace:
    """Return the trace with what every proposer drafts for its answers, found by asking all of them once more.

    An engine that decides for itself asks some of them at some places, and at another load would ask others at others.
    """
    most = client.engine.plan.current.num_speculative_tokens
    client.send(ApplyPlan(SpecPlan(num_speculative_tokens=most, fixed_depth=most)))
    requests = islice(offered.requests("always", "survey"), len(trace.lines))
    answers = await in_flight([partial(ask, client, request) for _, request in requests], trace.at_once or _AT_ONCE)
    lines = [
        replace(line, drafts={name: tuple(drafts) for name, drafts in answer.stats.drafts.items()})
        for line, answer in zip(trace.lines, answers, strict=True)
    ]
    return replace(trace, lines=tuple(lines))


@dataclass(frozen=True, slots=True)
class LoadRecording:
    """What a machine did at a load that it was not measured at."""

    load: TrafficLoad
    mode: SpecMode
    trace: Trace


class Calibration:
    """Measures an engine under some loads, and records others."""

    def __init__(self, build: Callable[[StepMeter], Engine], notify: Notify) -> None:
        """`build` returns an engine that has learned nothing yet, as each recording and each rehearsal begins."""
        self._build = build
        self._notify = notify

    async def run(
        self, model: TargetModel, measured: Sequence[OfferedLoad], recorded: Sequence[OfferedLoad]
    ) -> tuple[Machine, list[LoadRecording]]:
        """Return the machine and the recordings."""
        samples = await self._measure(measured, 0)
        recordings = [await self._record(offered, mode) for offered in recorded for mode in MODES]
        for number in range(1, _ROUNDS):
            samples = samples.with_others(await self._measure(measured, number))
        self._notify("measuring passes")
        passes = await asyncio.to_thread(measure, model, counts=PASS_TOKENS)
        async with self._engine(recorded[0]) as (client, meter):
            machine = replace(meter.machine(passes, samples), fingerprint=client.info.fingerprint)
        return machine, recordings

    async def _measure(self, measured: Sequence[OfferedLoad], number: int) -> MeasuredSteps:
        async with self._engine(measured[0]) as (client, meter):
            for offered in measured:
                part = replace(offered, seconds=offered.seconds / _ROUNDS, seed=offered.seed + 1000 * number)
                for mode in MODES:
                    self._notify(f"measuring {offered.load}, speculation {mode}")
                    await record(client, part, mode, f"measured-{offered.load.name}-{mode}")
            return meter.taken()

    async def _record(self, offered: OfferedLoad, mode: SpecMode) -> LoadRecording:
        self._notify(f"recording {offered.load}, speculation {mode}, to check the forecast by")
        async with self._engine(offered) as (client, _):
            trace = await record(client, offered, mode, "recorded")
        if mode != "off":
            self._notify(f"asking all proposers about the {len(trace.lines)} answers")
            async with self._engine(offered) as (client, _):
                trace = await surveyed(client, offered, trace)
        return LoadRecording(offered.load, mode, trace)

    @asynccontextmanager
    async def _engine(self, offered: OfferedLoad) -> AsyncIterator[tuple[ThreadEngineClient, StepMeter]]:
        """Yield an engine whose first passes, which are slower, are behind it."""
        meter = StepMeter()
        client = ThreadEngineClient(self._build(meter))
        try:
            meter.watch(client.engine)
            warm_up = replace(offered, load=TrafficLoad(at_once=1), seconds=min(_WARM_UP_S, offered.seconds))
            await record(client, warm_up, "off", "warm-up")
            meter.taken()
            yield client, meter
        finally:
            await client.close()
