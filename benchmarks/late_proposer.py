"""What do other requests notice of a proposer that is late, or never returns?

Usage: python -m benchmarks.late_proposer [--seconds 30] [--streams 4] [--limit-ms 150] [--repeats 3] [--json OUT]

One engine on the default model serves streams that a bad proposer may draft for, and others that it may not. Breakers
follow the engine's counts as in the server. Told are the gaps between two events of the other streams, how late after
its deadline an endless request ends, and the state of the bad proposer's breaker; for a proposer that has no drafts,
one that sleeps for 8 seconds in each call, and one that never returns. Each repeat has all three, in another order; the
ratios to its first, whose proposer is in time, hold on busy cores too.
"""

import argparse
import asyncio
import json
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

from prometheus_client import CollectorRegistry

from prolepsis.control.controls.controls import Controls
from prolepsis.control.controls.effective_plan import EffectivePlan
from prolepsis.control.controls.file import ControlsFile
from prolepsis.control.health.breaker import Breakers, BreakerSettings, State
from prolepsis.control.health.breaker_runtime import BreakerRuntime
from prolepsis.control.health.feature import HealthFeature
from prolepsis.control.store.controls import ControlTable
from prolepsis.control.store.database import in_memory
from prolepsis.core.config import EngineConfig
from prolepsis.core.engine_client import EngineClient
from prolepsis.core.errors import DeadlineExceeded
from prolepsis.core.events import Event, Failed
from prolepsis.core.messages import ApplyPlan
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import GenerateRequest, SamplingParams, SpeculationChoice
from prolepsis.core.telemetry.logs import configure_logs
from prolepsis.engine.build import FREE_PROPOSERS, assemble
from prolepsis.engine.drafting.draft import Draft
from prolepsis.engine.drafting.proposer import Proposer, SequenceView
from prolepsis.engine.models.load import LoadedModel, load_model
from prolepsis.engine.thread import ThreadEngineClient
from prolepsis.lab.bench.prompts import encode_prompts, load_prompts
from prolepsis.lab.bench.provenance import provenance

BAD = "prediction"
"""The name that the bad proposer takes."""
DEADLINE_S = 1.0
OTHERS = SpeculationChoice(proposers=("suffix",))
OWN = SpeculationChoice(proposers=(BAD,))
IN_TIME = "no drafts"
ARMS = {IN_TIME: 0.0, "sleeps 8 s": 8.0, "never returns": None}
"""Seconds of each call; None: for ever."""


class Bad(Proposer):
    """Has no drafts, after a while."""

    name = BAD
    free = True

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds

    def propose(self, sequences: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft | None]:
        if self._seconds != 0.0:
            threading.Event().wait(self._seconds)
        return [None] * len(sequences)


@dataclass
class Figures:
    gaps_ms: list[float] = field(default_factory=list)
    late_ms: list[float] = field(default_factory=list)
    """From the deadline of a request to its end."""


@dataclass(frozen=True, slots=True)
class Arm:
    """Gaps of the other streams, and what became of deadlines and of the bad proposer."""

    gaps: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    deadlines: int
    latest_after_deadline_ms: float
    overdue_calls: int
    breakers: Mapping[str, State]


class Load:
    """Streams of one engine until a moment; each begins anew when it ends."""

    def __init__(self, client: ThreadEngineClient, prompts: Sequence[Sequence[int]], seconds: float) -> None:
        self.figures = Figures()
        self._client = client
        self._prompts = prompts
        self._number = 0
        self._end = time.perf_counter() + seconds

    async def stream(self, choice: SpeculationChoice, *, measured: bool) -> None:
        while time.perf_counter() < self._end:
            request = self._request(choice, SamplingParams(seed=self._number, max_tokens=400, ignore_eos=True))
            times = [at for at, _ in await self._collect(request)]
            if measured:
                self.figures.gaps_ms += [1000.0 * (after - before) for before, after in pairwise(times)]

    async def deadlines(self) -> None:
        params = SamplingParams(seed=1, max_tokens=100_000, ignore_eos=True)
        while time.perf_counter() < self._end:
            request = self._request(OTHERS, params, DEADLINE_S)
            began = time.perf_counter()
            at, last = (await self._collect(request))[-1]
            assert isinstance(last, Failed), last
            assert isinstance(last.error, DeadlineExceeded), last.error
            self.figures.late_ms.append(1000.0 * (at - began - DEADLINE_S))

    async def _collect(self, request: GenerateRequest) -> list[tuple[float, Event]]:
        return [(time.perf_counter(), event) async for event in self._client.generate(request)]

    def _request(
        self, choice: SpeculationChoice, params: SamplingParams, deadline_s: float | None = None
    ) -> GenerateRequest:
        self._number += 1
        prompt = tuple(self._prompts[self._number % len(self._prompts)])
        traffic_class = "own" if choice is OWN else "others"
        return GenerateRequest(
            f"r{self._number}",
            prompt,
            params,
            deadline_s=deadline_s,
            traffic_class=traffic_class,
            speculation=choice,
        )


async def measure(seconds_of_call: float | None, loaded: LoadedModel, given: argparse.Namespace) -> Arm:
    """Return the figures of one arm."""
    FREE_PROPOSERS[BAD] = lambda *_: Bad(seconds_of_call)
    config = EngineConfig(max_model_len=8192, kv_memory="512MiB", propose_limit_ms=given.limit_ms, draft_head="none")
    client = ThreadEngineClient(assemble(config, loaded))
    plan = EffectivePlan(SpecPlan(), lambda plan: client.send(ApplyPlan(plan)))
    with tempfile.TemporaryDirectory() as folder:
        controls = Controls(ControlsFile(Path(folder) / "controls.json"), ControlTable(in_memory()))
        breakers = Breakers(BreakerSettings())
        runtime = BreakerRuntime(breakers, plan.disable, CollectorRegistry(), controls=controls)
        ticking = asyncio.create_task(_observe(client, runtime))
        load = Load(
            client, [prompt.token_ids for prompt in encode_prompts(load_prompts(None), loaded.tokenizer)], given.seconds
        )
        streams = [load.stream(choice, measured=choice is OTHERS) for choice in (OTHERS, OWN) * given.streams]
        await asyncio.gather(*streams, load.deadlines())
        ticking.cancel()
    gaps = sorted(load.figures.gaps_ms)
    states = {key[1]: breaker.state for key, breaker in breakers.all.items() if key[0] == BAD}
    counts = [count for count in client.proposer_counts() if count.proposer == BAD]
    await client.close()
    return Arm(
        len(gaps),
        round(gaps[len(gaps) // 2], 1),
        round(gaps[int(0.99 * len(gaps))], 1),
        round(gaps[-1], 1),
        len(load.figures.late_ms),
        round(max(load.figures.late_ms), 1),
        sum(count.num_overdue for count in counts),
        states,
    )


async def _observe(client: EngineClient, breakers: BreakerRuntime) -> None:
    while True:
        breakers.observe(client.proposer_counts())
        await asyncio.sleep(HealthFeature.period_s)


def _ratios(repeats: Sequence[Mapping[str, Arm]], arm: str) -> dict[str, list[float]]:
    """Return the arm's figures of each repeat over those of the proposer that is in time."""
    pairs = [(arms[arm], arms[IN_TIME]) for arms in repeats]
    return {
        "p50": [round(one.p50_ms / base.p50_ms, 2) for one, base in pairs],
        "p99": [round(one.p99_ms / base.p99_ms, 2) for one, base in pairs],
        "max": [round(one.max_ms / base.max_ms, 2) for one, base in pairs],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--limit-ms", type=float, default=150.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    configure_logs("error")
    loaded = load_model(EngineConfig())
    repeats: list[dict[str, Arm]] = []
    for number in range(given.repeats):
        repeats.append({})
        for i in range(len(ARMS)):
            arm = list(ARMS)[(number + i) % len(ARMS)]
            repeats[-1][arm] = asyncio.run(measure(ARMS[arm], loaded, given))
            print(f"{arm}: {repeats[-1][arm]}", flush=True)
    ratios = {arm: _ratios(repeats, arm) for arm in ARMS if arm != IN_TIME}
    print(f"over {IN_TIME!r}: {ratios}")
    if given.json:
        arms = [{arm: asdict(figures) for arm, figures in one.items()} for one in repeats]
        result = {"provenance": provenance({"first": 0}, {}), "repeats": arms, "ratios": ratios}
        given.json.write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
