"""An engine client that plays a script, for tests of code that uses an engine."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from prolepsis.core.client_draft import ClientDraft
from prolepsis.core.config import DRAFT_HEAD, HeadProposerName
from prolepsis.core.engine_client import EngineHealth, EngineInfo, HeadSwapped, InstalledHead
from prolepsis.core.errors import MemoryPlanError, ModelLoadError
from prolepsis.core.events import Aborted, Event, Finished, FinishReason, Terminal, Tokens
from prolepsis.core.messages import (
    Abort,
    ApplyPlan,
    Control,
    InjectFault,
    LearnedAcceptance,
    OfferDraft,
    SetCorpora,
    StopRun,
)
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.stats import ProposerMemory, RequestStats, TrafficClassCounts

Script = Callable[[GenerateRequest], Iterable[Event | float | Exception]]
"""Request -> events to yield; a float sleeps so many seconds, an exception is raised."""

INFO = EngineInfo(
    model="tiny",
    forward="fake",
    vocab_size=257,
    max_model_len=512,
    fingerprint="fp_test",
    exactness="strict",
    exactness_reason="a fake is exact",
    proposers=("suffix", "prediction"),
)


class FakeEngineClient:
    """An `EngineClient` without an engine. A script that ends without a terminal event waits for an abort."""

    def __init__(self, script: Script, info: EngineInfo = INFO) -> None:
        self.info = info
        self.requests: list[GenerateRequest] = []
        self.aborted: list[str] = []
        """Ids of requests that were aborted, by a message or by closing their iterator early."""
        self.offered: list[tuple[str, ClientDraft]] = []
        self.plans: list[SpecPlan] = []
        self.stopped: list[str] = []
        self.faults: list[str] = []
        """Injected by drills."""
        self.corpora: dict[str, tuple[bytes, ...]] = {}
        self.learned: list[LearnedAcceptance] = []
        self.swaps: list[str] = []
        self.installed: Sequence[InstalledHead] = ()
        self.heads_error: Exception | None = None
        self.closed = False
        self.counts: Sequence[TrafficClassCounts] = ()
        self.memory: Sequence[ProposerMemory] = ()
        self.reported = EngineHealth(alive=True, ready=True, detail="", num_running=1, num_waiting=2, kv_usage=0.25)
        self.asked = asyncio.Event()
        """Set by the first request; for tests that share the client's event loop."""
        self.held = asyncio.Event()
        """Set once a script has ended without a terminal event."""
        self._script = script
        self._aborts: dict[str, asyncio.Event] = {}

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        self.requests.append(request)
        self.asked.set()
        abort = self._aborts[request.request_id] = asyncio.Event()
        num_tokens, ended = 0, False
        try:
            for item in self._script(request):
                if isinstance(item, Exception):
                    ended = True
                    raise item
                if isinstance(item, float):
                    await _sleep(item, abort)
                if abort.is_set():
                    break
                if not isinstance(item, float):
                    num_tokens += len(item.token_ids) if isinstance(item, Tokens) else 0
                    ended = isinstance(item, Terminal)
                    yield item
                    if ended:
                        return
            else:
                self.held.set()
            await abort.wait()
            ended = True
            yield Aborted(request.request_id, RequestStats(len(request.prompt_token_ids), 0, num_tokens))
        finally:
            if not ended and request.request_id not in self.aborted:
                self.aborted.append(request.request_id)
            self._aborts.pop(request.request_id, None)

    def send(self, control: Control) -> None:
        match control:
            case Abort(request_id) if request_id in self._aborts:
                self.aborted.append(request_id)
                self._aborts[request_id].set()
            case OfferDraft(request_id, draft):
                self.offered.append((request_id, draft))
            case ApplyPlan(plan):
                self.plans.append(plan)
            case StopRun(run):
                self.stopped.append(run)
            case SetCorpora(owner, texts):
                self.corpora[owner] = texts
            case LearnedAcceptance():
                self.learned.append(control)
            case InjectFault(fault):
                self.faults.append(fault)

    async def heads(self) -> Sequence[InstalledHead]:
        if self.heads_error is not None:
            raise self.heads_error
        return self.installed

    async def swap_head(self, name: str, proposer: HeadProposerName = DRAFT_HEAD) -> HeadSwapped:
        """Swap any head but one called broken or huge."""
        if name.startswith("broken"):
            raise ModelLoadError(f"{name} is damaged")
        if name.startswith("huge"):
            raise MemoryPlanError(f"{name} does not fit")
        self.swaps.append(name)
        before, label = getattr(self.info, proposer), None if name == "none" else name
        changed: dict[str, Any] = {proposer: label}
        self.info = replace(self.info, **changed)
        return HeadSwapped(before, label, 0)

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
        position = 0
        for i, step in enumerate(tokens):
            reason: FinishReason | None = "stop" if i == len(tokens) - 1 else None
            for index in range(request.n):
                yield Tokens(request.request_id, index, tuple(step), finish_reason=reason, position=position)
            position += len(step)
        counted = RequestStats(num_prompt_tokens=len(request.prompt_token_ids), num_output_tokens=num_output)
        yield Finished(request.request_id, stats or counted)

    return script


async def _sleep(seconds: float, abort: asyncio.Event) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await abort.wait()
