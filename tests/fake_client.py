"""An engine client that plays a script, for tests of code that uses an engine."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

from prolepsis.core.events import Aborted, Event, Finished, FinishReason, Terminal, Tokens
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.stats import ProposerMemory, RequestStats, TrafficClassCounts
from prolepsis.engine.client import EngineHealth, EngineInfo, HeadSwapped

Script = Callable[[GenerateRequest], Iterable[Event | float | Exception]]
"""Request -> events to yield; a float sleeps so many seconds, an exception is raised."""

FAKE_INFO = EngineInfo(
    model="fake",
    forward="scripted",
    vocab_size=256,
    max_model_len=128,
    fingerprint="fp_fake",
    exactness="strict",
    exactness_reason="scripted",
    proposers=(),
)


class FakeEngineClient:
    """An `EngineClient` without an engine. A script that ends without a terminal event waits for an abort."""

    def __init__(self, script: Script, info: EngineInfo = FAKE_INFO) -> None:
        self.info = info
        self.requests: list[GenerateRequest] = []
        self.aborted: list[str] = []
        """Ids of requests that were aborted, by `abort` or by closing their iterator early."""
        self.plans: list[SpecPlan] = []
        self.stopped: list[str] = []
        self.swaps: list[str] = []
        self.closed = False
        self.counts: Sequence[TrafficClassCounts] = ()
        self.memory: Sequence[ProposerMemory] = ()
        self.reported = EngineHealth(alive=True, ready=True, detail="")
        self._script = script
        self._aborts: dict[str, asyncio.Event] = {}

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        self.requests.append(request)
        abort = self._aborts[request.request_id] = asyncio.Event()
        ended = False
        try:
            for item in self._script(request):
                if isinstance(item, Exception):
                    raise item
                if isinstance(item, float):
                    await _sleep(item, abort)
                elif not abort.is_set():
                    ended = isinstance(item, Terminal)
                    yield item
                    if ended:
                        return
            await abort.wait()
            ended = True
            yield Aborted(request.request_id, RequestStats())
        finally:
            if not ended and request.request_id not in self.aborted:
                self.aborted.append(request.request_id)
            self._aborts.pop(request.request_id, None)

    def abort(self, request_id: str) -> None:
        if request_id in self._aborts:
            self.aborted.append(request_id)
            self._aborts[request_id].set()

    def apply_plan(self, plan: SpecPlan) -> None:
        self.plans.append(plan)

    def stop_run(self, name: str) -> None:
        self.stopped.append(name)

    async def swap_head(self, name: str) -> HeadSwapped:
        self.swaps.append(name)
        return HeadSwapped(None, None if name == "none" else name, 0)

    def health(self) -> EngineHealth:
        return self.reported

    def proposer_counts(self) -> Sequence[TrafficClassCounts]:
        return self.counts

    def proposer_memory(self) -> Sequence[ProposerMemory]:
        return self.memory

    async def close(self) -> None:
        self.closed = True
        for abort in self._aborts.values():
            abort.set()


def answer(tokens: Sequence[Sequence[int]], stats: RequestStats | None = None) -> Script:
    """Return a script: every sequence of a request gets `tokens`, one inner sequence a step, and stops."""

    def script(request: GenerateRequest) -> Iterable[Event]:
        num_output = request.n * sum(len(step) for step in tokens)
        for i, step in enumerate(tokens):
            reason: FinishReason | None = "stop" if i == len(tokens) - 1 else None
            for index in range(request.n):
                yield Tokens(request.request_id, index, tuple(step), finish_reason=reason)
        counted = RequestStats(num_prompt_tokens=len(request.prompt_token_ids), num_output_tokens=num_output)
        yield Finished(request.request_id, stats or counted)

    return script


async def _sleep(seconds: float, abort: asyncio.Event) -> None:
    try:
        await asyncio.wait_for(abort.wait(), seconds)
    except TimeoutError:
        return
