"""Measures a machine while it answers prompts under load, plain and speculating, and records what it did."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, islice
from statistics import mean

from prolepsis.core.ask import ask
from prolepsis.core.facts import RequestFacts, traffic_class_of
from prolepsis.core.messages import ApplyPlan
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import GenerateRequest, SamplingParams, SpecMode, SpeculationChoice
from prolepsis.engine.drafting.cost import CostCurve
from prolepsis.engine.models.protocol import TargetModel
from prolepsis.engine.profile import measure
from prolepsis.engine.step import Engine
from prolepsis.engine.thread import ThreadEngineClient
from prolepsis.lab.measure.arrivals import TrafficLoad, arriving, in_flight
from prolepsis.lab.measure.contenders import Notify
from prolepsis.lab.measure.prompts import EncodedPrompt
from prolepsis.lab.rehearsal.advice import FEWEST_REQUESTS
from prolepsis.lab.rehearsal.trace import BlockNumbers, Trace, TraceLine, trace_line
from prolepsis.lab.virtual_engine.machine import Machine
from prolepsis.lab.virtual_engine.measure import MeasuredSteps, StepMeter

PASS_TOKENS = (1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 64, 128, 256, 512)
"""The engine's own profile ends with 64: it need not predict how long prompts take."""


def measured_passes(model: TargetModel, max_step_tokens: int) -> CostCurve:
    """Return what passes take one by one, up to the largest that an engine computes and the model has room for."""
    most = min(max_step_tokens, model.info.max_positions // 2)
    return measure(model, counts=[*(tokens for tokens in PASS_TOKENS if tokens < most), most])


MODES: tuple[SpecMode, ...] = ("off", "auto")
_ROUNDS = 2
"""Times that each load is measured, with the recordings between them: machines are not the same all the time."""

_WARM_UP_S = 1.0
_AT_ONCE = 8
"""Of a survey of random arrivals."""
_RARE = 0.1
"""Share of the prompts below which no recording is made longer for their traffic class."""


@dataclass(frozen=True, slots=True)
class OfferedLoad:
    """Requests for some time, with answers of random lengths."""

    load: TrafficLoad
    prompts: Sequence[EncodedPrompt]
    seconds: float  # those that were asked for until then are awaited
    max_tokens: int = 256
    seed: int = 0
    at_least: int = 0  # requests, however long they take
    route: str = ""  # of the requests, as recordings have it; so is the next
    tenant: str = ""

    def for_advice(self) -> "OfferedLoad":
        """Return it with as many requests as advice on the traffic classes of its prompts needs, but for rare ones."""
        facts = (RequestFacts(prompt_tokens=len(prompt.token_ids)) for prompt in self.prompts)
        whole, numbers = len(self.prompts), Counter(map(traffic_class_of, facts)).values()
        fewest = min(number for number in numbers if number >= _RARE * whole)
        return replace(self, at_least=-(-FEWEST_REQUESTS * whole // fewest))

    def about_s(self, passes: CostCurve) -> float:
        """Return about how long it takes where passes take so long."""
        at_once, num_tokens = self.load.at_once or 1, round(0.4 * self.max_tokens)
        prompt = round(mean(len(prompt.token_ids) for prompt in self.prompts))
        request_s = (passes.ms(prompt, 0) * at_once + num_tokens * passes.ms(at_once, at_once * prompt)) / 1000.0
        apart_s = 1.0 / self.load.per_second if self.load.per_second else request_s / at_once
        return max(self.seconds, self.at_least * apart_s) + request_s

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


async def record(
    client: ThreadEngineClient,
    offered: OfferedLoad,
    mode: SpecMode,
    name: str,
    keep: Callable[[Trace], object] = lambda trace: None,
) -> Trace:
    """Ask for the requests of a load when their time comes; return what was answered.

    `keep` has it too, and where the recording is interrupted what was answered until then.
    """
    loop, blocks, lines = asyncio.get_running_loop(), BlockNumbers(), dict[int, TraceLine]()
    begin = loop.time()

    async def answered(number: int, request: GenerateRequest) -> None:
        at, answer = loop.time() - begin, await ask(client, request)
        line = trace_line(request, answer.token_ids, answer.stats, blocks, at)
        lines[number] = replace(line, route=offered.route, tenant=offered.tenant)

    def trace() -> Trace:
        in_order = tuple(lines[number] for number in sorted(lines))
        return Trace(lines=in_order, machine=client.info.fingerprint, at_once=offered.load.at_once)

    numbered = enumerate(offered.requests(mode, name))
    jobs = ((at, partial(answered, number, request)) for number, (at, request) in numbered)
    try:
        await arriving(jobs, at_once=offered.load.at_once, seconds=offered.seconds, at_least=offered.at_least)
    finally:  # interrupted too
        if lines:
            keep(trace())
    return trace()


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

    @property
    def file(self) -> str:
        """Name of its file."""
        return f"{'plain' if self.mode == 'off' else self.mode}-{self.load.name}.jsonl.gz"


class Calibration:
    """Measures an engine under some loads, and records others; says how far it is and how long the rest takes."""

    def __init__(
        self,
        build: Callable[[StepMeter], Engine],
        notify: Notify,
        keep: Callable[[Machine | LoadRecording], object] = lambda kept: None,
    ) -> None:
        """`build` returns an engine that has learned nothing yet, as each recording and each rehearsal begins.

        `keep` has each recording, and the machine as far as it is known, as soon as they are measured.
        """
        self._build = build
        self._notify = notify
        self._keep = keep
        self._samples = MeasuredSteps()

    async def run(
        self, passes: CostCurve, measured: Sequence[OfferedLoad], recorded: Sequence[OfferedLoad]
    ) -> tuple[Machine, list[LoadRecording]]:
        """Return the machine, whose passes take `passes` one by one, and the recordings."""
        self._num_begun, self._began = 0, time.monotonic()
        parts = [replace(offered, seconds=offered.seconds / _ROUNDS) for offered in measured]
        a_round = [offered.about_s(passes) for offered in parts for _ in MODES]
        recorded_s = [offered.about_s(passes) for offered in recorded for _ in (*MODES, "survey")]
        self._planned_s, least = [*a_round, *recorded_s, *a_round * (_ROUNDS - 1)], recorded[0].at_least
        until = f"{recorded[0].seconds:g} s" + f" and until {least} requests have come" * bool(least)
        whole = f"this takes about {_rounded(sum(self._planned_s))}: each of {len(measured)} loads is measured twice"
        self._notify(f"{whole}, plain and speculating; {len(recorded)} are recorded for {until}")
        await self._measure(parts, 0, passes)
        recordings = [await self._record(offered, mode) for offered in recorded for mode in MODES]
        for number in range(1, _ROUNDS):
            machine = await self._measure(parts, number, passes)
        return machine, recordings

    async def _measure(self, measured: Sequence[OfferedLoad], number: int, passes: CostCurve) -> Machine:
        async with self._engine(measured[0]) as (client, meter):
            for offered in measured:
                part = replace(offered, seed=offered.seed + 1000 * number)
                try:
                    for mode in MODES:
                        self._begin(f"measuring {offered.load}, speculation {mode}, time {1 + number} of {_ROUNDS}")
                        await record(client, part, mode, f"measured-{offered.load.name}-{mode}")
                finally:  # interrupted too
                    self._samples = self._samples.with_others(meter.taken())
                    machine = replace(meter.machine(passes, self._samples), fingerprint=client.info.fingerprint)
                    self._keep(machine)
            return machine

    async def _record(self, offered: OfferedLoad, mode: SpecMode) -> LoadRecording:
        def keep(trace: Trace) -> None:
            self._keep(LoadRecording(offered.load, mode, trace))

        self._begin(f"recording {offered.load}, speculation {mode}, to check the forecast by")
        async with self._engine(offered) as (client, _):
            trace = await record(client, offered, mode, "recorded", keep)
        if mode != "off":
            self._begin(f"asking all proposers about the {len(trace.lines)} answers")
            async with self._engine(offered) as (client, _):
                trace = await surveyed(client, offered, trace)
            keep(trace)
        return LoadRecording(offered.load, mode, trace)

    def _begin(self, what: str) -> None:
        """Say which step begins, and how long the rest takes if it is as late as those before."""
        done_s, elapsed_s = sum(self._planned_s[: self._num_begun]), time.monotonic() - self._began
        left_s = sum(self._planned_s[self._num_begun :]) * (max(1.0, elapsed_s / done_s) if done_s else 1.0)
        self._num_begun += 1
        self._notify(f"step {self._num_begun} of {len(self._planned_s)}, about {_rounded(left_s)} left: {what}")

    @asynccontextmanager
    async def _engine(self, offered: OfferedLoad) -> AsyncIterator[tuple[ThreadEngineClient, StepMeter]]:
        """Yield an engine whose first passes, which are slower, are behind it."""
        meter = StepMeter()
        client = ThreadEngineClient(self._build(meter))
        try:
            meter.watch(client.engine)
            warm_up = replace(
                offered, load=TrafficLoad(at_once=1), seconds=min(_WARM_UP_S, offered.seconds), at_least=0
            )
            await record(client, warm_up, "off", "warm-up")
            meter.taken()
            yield client, meter
        finally:
            await client.close()


def _rounded(seconds: float) -> str:
    """Return a time that is not known better."""
    return f"{seconds:.0f} seconds" if seconds < 90.0 else f"{seconds / 60.0:.0f} minutes"
