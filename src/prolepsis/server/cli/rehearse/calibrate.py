"""Measures a machine while it answers prompts at stated rates, plain and speculating, and records what it did."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from prolepsis.core.requests import GenerateRequest, SamplingParams, SpecMode, SpeculationChoice
from prolepsis.engine.models.protocol import TargetModel
from prolepsis.engine.profile import measure
from prolepsis.engine.rehearsal.machine import Machine
from prolepsis.engine.rehearsal.measure import StepMeter
from prolepsis.engine.thread import ThreadEngineClient
from prolepsis.server.cli.bench.ask import ask
from prolepsis.server.cli.bench.measure import Notify
from prolepsis.server.cli.bench.prompts import EncodedPrompt
from prolepsis.server.rehearsal.record import BlockNumbers, trace_line
from prolepsis.server.rehearsal.trace import Trace, TraceLine

PASS_TOKENS = (1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 64, 128, 256, 512)
"""The engine's own profile ends with 64: it need not predict how long prompts take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedLoad:
    """Requests of random arrivals (a Poisson process), with answers of random lengths."""

    prompts: Sequence[EncodedPrompt]
    per_second: float
    num_requests: int
    max_tokens: int = 256
    seed: int = 0

    def requests(self, mode: SpecMode, name: str) -> list[tuple[float, GenerateRequest]]:
        """Return arrivals (seconds) and requests; lengths are lognormal with a median of a third of `max_tokens`."""
        chance, at, asked = random.Random(self.seed), 0.0, []
        for i in range(self.num_requests):
            at += chance.expovariate(self.per_second)
            length = max(2, min(self.max_tokens, round(self.max_tokens / 3 * chance.lognormvariate(0.0, 0.7))))
            source = GenerateRequest(
                request_id=f"{name}-{i}",
                prompt_token_ids=chance.choice(self.prompts).token_ids,
                params=SamplingParams(temperature=0.0, max_tokens=length),
                cache_salt=name,
                speculation=SpeculationChoice(mode),
                records_drafts=mode != "off",
            )
            asked.append((at, source))
        return asked


async def record(client: ThreadEngineClient, load: OfferedLoad, mode: SpecMode, name: str) -> Trace:
    """Ask for the requests of a load when their time comes; return what was answered."""
    loop, blocks = asyncio.get_running_loop(), BlockNumbers()
    begin = loop.time()

    async def answered(at: float, request: GenerateRequest) -> TraceLine:
        await asyncio.sleep(begin + at - loop.time())
        asked_at, answer = loop.time() - begin, await ask(client, request)
        return trace_line(request, answer.token_ids, answer.stats, blocks, asked_at)

    lines = await asyncio.gather(*(answered(*one) for one in load.requests(mode, name)))
    return Trace(lines=tuple(sorted(lines, key=lambda line: line.at)), machine=client.info.fingerprint)


@dataclass(frozen=True, slots=True)
class Calibration:
    """A machine, and what it did at one rate that it was not measured at: plain and speculating."""

    machine: Machine
    plain: Trace
    auto: Trace


async def calibrate(
    client: ThreadEngineClient, model: TargetModel, meter: StepMeter, loads: Sequence[OfferedLoad], notify: Notify
) -> Calibration:
    """Measure the machine under all loads but the last, whose requests are recorded and not measured."""
    meter.watch(client.engine)
    await record(client, replace(loads[0], num_requests=4), "auto", "warm-up")
    meter.taken()
    for number, load in enumerate(loads[:-1]):
        for mode in ("off", "auto"):
            notify(f"measuring {load.num_requests} requests, {load.per_second:g} a second, speculation {mode}")
            await record(client, load, mode, f"measured-{number}-{mode}")
    samples = meter.taken()
    held_out = loads[-1]
    notify(f"recording {held_out.num_requests} requests, {held_out.per_second:g} a second, to check the forecast by")
    plain, auto = [await record(client, held_out, mode, f"recorded-{mode}") for mode in ("off", "auto")]
    notify("measuring passes")
    passes = await asyncio.to_thread(measure, model, counts=PASS_TOKENS)
    machine = replace(meter.machine(passes, samples), fingerprint=client.info.fingerprint)
    return Calibration(machine, plain, auto)
