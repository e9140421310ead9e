"""The engine room: one step over all requests, and what happens when a step fails."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import Protocol

import structlog

from prolepsis.core.errors import EngineDead, EngineError, InvalidParameter, UserError
from prolepsis.core.events import Event, Failed
from prolepsis.core.messages import Abort, ApplyPlan, Message, StopRun, Submit, SwapHead
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.stats import RequestStats
from prolepsis.engine.accounting import charge
from prolepsis.engine.client import EngineHealth, EngineInfo, HeadSwapped
from prolepsis.engine.draft_head_slot import HeadBay
from prolepsis.engine.hidden_states import Showing
from prolepsis.engine.observer import EngineObserver, NoObserver, Reporter
from prolepsis.engine.rows import Row, Verdict
from prolepsis.engine.runner import Computed, Runner
from prolepsis.engine.scheduler import Scheduler
from prolepsis.engine.speculation import Speculation
from prolepsis.engine.timings import StepClock, Timings

log = structlog.get_logger(__name__)

MAX_FAILED_STEPS = 3
"""Failed steps in a row after which the engine gives up."""


class StepVerifier(Protocol):
    """Says, from what a pass computed, what the target emits for each row; None for rows that sample nothing."""

    def verify(self, rows: Sequence[Row], computed: Computed) -> list[Verdict | None]: ...


@dataclass(frozen=True, slots=True)
class EngineParts:
    """What an engine is put together from."""

    info: EngineInfo
    scheduler: Scheduler
    speculation: Speculation
    runner: Runner
    verifier: StepVerifier
    observer: EngineObserver | None = None
    showing: Showing = field(default_factory=Showing)
    heads: HeadBay | None = None
    """None where no draft head can be put in."""


class Engine:
    """Serves requests step by step. Everything but `send`, `validate`, `compile`, `prepare_head`, `health` and `info`
    belongs to one thread.

    Each accepted request gets exactly one terminal event. A step that raises fails the requests it was for; several in
    a row, or page accounting that does not add up, and the engine is dead: all its requests fail with `EngineDead`.
    """

    def __init__(self, parts: EngineParts, clock: Callable[[], float] = time.monotonic) -> None:
        self.info = parts.info
        self.timings = Timings()
        self.dead: EngineDead | None = None
        self.clock = clock
        self.scheduler = parts.scheduler
        self.speculation = parts.speculation
        self.runner = parts.runner
        self._verifier = parts.verifier
        self.showing = parts.showing
        self._heads = parts.heads
        self._reporter = Reporter(parts.observer or NoObserver(), parts.speculation.proposers)
        self._inbox: SimpleQueue[Message | None] = SimpleQueue()
        self._refused: list[Event] = []
        self._rows: list[Row] = []
        self._num_failed_steps = 0

    def step(self) -> list[Event]:
        """Run one step over all requests and return what it has to say about them."""
        lap = self.timings.start()
        with self._contained():
            self._drain()
            rows = self._rows = self.scheduler.schedule(self.clock())
            lap("schedule")
            if not rows:
                return self._take_events()
            rows = self.scheduler.attach(self.speculation.propose(rows, self.scheduler.plan))
            lap("propose")
            taps = self.showing.begin(rows, partial(self.speculation.may_draft, self.scheduler.plan))
            computed = self.runner.forward(rows, taps)
            lap("forward")
            verdicts = self._verify(rows, computed)
            lap("verify")
            self.showing.show(rows, verdicts, computed.features)
            lap("learn")
            self.scheduler.commit(rows, verdicts, self.clock())
            lap("commit")
            self.speculation.learn(rows, verdicts, self.scheduler.plan, lap.timing.forward + lap.timing.verify)
            lap("learn")
            self._observe(rows, lap)
        return self._take_events()

    @property
    def has_work(self) -> bool:
        """Whether a step would do something."""
        return bool(self.scheduler.requests) or not self._inbox.empty()

    def send(self, message: Message | None) -> None:
        """Put a message into the inbox, from any thread; None only wakes `wait`."""
        self._inbox.put(message)

    def wait(self, timeout_s: float | None = None) -> None:
        """Sleep until a message arrives, and take it in. Before, prove that nothing is left over of past requests."""
        self._check()
        try:
            self._handle(self._inbox.get(timeout=timeout_s))
        except Empty:
            return

    def validate(self, request: GenerateRequest) -> None:
        """Raise `UserError` where `request` cannot be served, `EngineDead` where nothing can; from any thread."""
        if self.dead is not None:
            raise self.dead
        self.scheduler.validate(request)

    def compile(self, request: GenerateRequest) -> object:
        """Compile what `request` needs, from any thread but an event loop's: it may take a second.

        Raises `InvalidGrammar`. Who holds the result until the request is accepted spares the engine thread the work.
        """
        return self.scheduler.compile(request)

    def prepare_head(self, name: str) -> tuple[SwapHead, Future[HeadSwapped]]:
        """Load a draft head, from any thread but the engine's; return the message to send, and what comes of it.

        Raises `ModelError` where the head cannot be used, `InvalidParameter` where the engine takes none.
        """
        if self._heads is None:
            raise InvalidParameter("this engine drafts nothing (num_speculative_tokens is 0)", param="draft_head")
        return self._heads.prepare(name)

    def health(self) -> EngineHealth:
        """Return how the engine is, from any thread."""
        scheduler, dead = self.scheduler, self.dead
        detail = str(dead) if dead else ""
        return EngineHealth(
            alive=dead is None,
            ready=not detail,
            detail=detail,
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            kv_usage=scheduler.kv_usage,
        )

    def abort_all(self, reason: str) -> list[Event]:
        """End every request, those still in the inbox included, and return the events."""
        self._drain()
        for request_id in list(self.scheduler.requests):
            self.scheduler.abort(request_id, reason, self.clock())
        return self._take_events()

    def close_heads(self) -> None:
        """Put in no draft head any more: whoever waits for one learns it."""
        if self._heads is not None:
            self._heads.close(self.dead or EngineDead("the engine is closed"))

    def die(self, error: BaseException | str) -> None:
        """Serve nothing any more: fail every request."""
        self.dead = EngineDead(f"the engine ended: {error}")
        log.error("engine_dead", error=str(error))
        self.close_heads()
        self.scheduler.abandon(self.dead, self.clock())

    def _drain(self) -> None:
        while not self._inbox.empty():
            self._handle(self._inbox.get_nowait())

    def _handle(self, message: Message | None) -> None:
        match message:
            case Submit(request, arrival):
                self._submit(request, arrival)
            case Abort(request_id, reason):
                self.scheduler.abort(request_id, reason, self.clock())
            case ApplyPlan(plan):
                self.scheduler.plan = replace(plan, stopped=plan.stopped | self.scheduler.plan.stopped)
            case StopRun(name):
                plan = self.scheduler.plan
                self.scheduler.plan = replace(plan, stopped=plan.stopped | {name})
            case SwapHead():
                self._swap_head(message)

    def _submit(self, request: GenerateRequest, arrival: float) -> None:
        """Accept or refuse; whoever sent it without `validate` still gets a terminal event."""
        try:
            if self.dead is not None:
                raise self.dead
            self.scheduler.submit(request, arrival)
        except (UserError, EngineDead) as error:
            if request.request_id in self.scheduler.requests:
                log.error("request_id_in_use", request_id=request.request_id)  # the one terminal event is the first's
            else:
                self._refused.append(Failed(request.request_id, error, RequestStats()))
        except Exception as error:  # contained: one request that cannot even be opened must not take the engine along
            log.exception("submit_failed")
            self._refused.append(Failed(request.request_id, EngineError(f"not accepted: {error!r}"), RequestStats()))

    def _swap_head(self, message: SwapHead) -> None:
        assert self._heads is not None, "who loads a head has a place for it"
        proposers = self.speculation.proposers
        tell = self._heads.put(message, proposers, self.showing, self.timings.num_steps)
        if tell is not None:
            self.scheduler.forget_prefixes()
            self.info = replace(self.info, draft_head=self._heads.label, proposers=proposers.names)
            tell()

    def _verify(self, rows: Sequence[Row], computed: Computed) -> list[Verdict | None]:
        verdicts = self._verifier.verify(rows, computed)
        self.runner.compact(rows, verdicts)
        return verdicts

    def _observe(self, rows: Sequence[Row], lap: StepClock) -> None:
        self._num_failed_steps = 0
        timing = lap.done(sum(row.num_rows for row in rows), len(rows))
        charge(rows, timing, self.speculation.proposers.cost)
        scheduler = self.scheduler
        self._reporter.step(timing, (len(scheduler.running), len(scheduler.waiting), scheduler.kv_usage))

    def _take_events(self) -> list[Event]:
        events = self.scheduler.take_events()
        ended = self.scheduler.take_ended()
        self.speculation.forget(ended)
        self.showing.forget(ended)
        self._reporter.ended(events)
        if self._refused:
            events += self._refused
            self._refused = []
        return events

    @contextmanager
    def _contained(self) -> Iterator[None]:
        self._rows = []
        try:
            yield
        except Exception as error:  # contained: one bad step must not take other requests, or the server, with it
            log.exception("step_failed", rows=len(self._rows))
            self._fail_step(error)

    def _fail_step(self, error: Exception) -> None:
        """Fail the requests the step was for; without rows nobody can tell, so all of them."""
        failed = {row.sequence.request.request_id for row in self._rows} or set(self.scheduler.requests)
        failure = EngineError(f"a step failed: {error!r}")
        self._num_failed_steps += 1
        try:
            for request_id in failed:
                self.scheduler.fail(request_id, failure, self.clock())
        except Exception as second:  # contained: the step left pages in disorder
            self.die(second)
        if self._num_failed_steps >= MAX_FAILED_STEPS:
            self.die(f"{self._num_failed_steps} steps failed in a row, the last with {error!r}")
        self._check()

    def _check(self) -> None:
        try:
            if self.dead is None:
                self.scheduler.check()
        except AssertionError as error:
            self.die(f"page accounting does not add up: {error}")
