"""The engine: one step over all requests, and what happens when a step fails."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from queue import Empty, SimpleQueue

import structlog

from prolepsis.core.config import CANDIDATE_HEAD, DRAFT_HEAD, LEARNT_HEAD, HeadProposerName
from prolepsis.core.engine_client import EngineHealth, EngineInfo, HeadSwapped, InstalledHead
from prolepsis.core.errors import EngineDead, EngineError, InvalidParameter, OtherExactGroup, StepFailed, UserError
from prolepsis.core.events import Event, Failed
from prolepsis.core.figures import EngineObserver
from prolepsis.core.messages import (
    Abort,
    ApplyPlan,
    InjectFault,
    LearnedAcceptance,
    Message,
    OfferDraft,
    SetCorpora,
    StopRun,
    Submit,
    SwapHead,
)
from prolepsis.core.plan import AppliedPlan, SpecPlan
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.stats import RequestStats
from prolepsis.engine.accounting import charge, keep_rounds
from prolepsis.engine.containment import Containment
from prolepsis.engine.draft_head_slot import DraftHeadSlot
from prolepsis.engine.drafting.call_watch import WatchedCall
from prolepsis.engine.faults import Faults
from prolepsis.engine.hidden_states import HiddenStateRouter
from prolepsis.engine.observer import Reporter
from prolepsis.engine.request import SequenceState
from prolepsis.engine.rows import Row, SampledTokens
from prolepsis.engine.runner import Computed, PassRunner, StepVerifier
from prolepsis.engine.scheduler import Scheduler
from prolepsis.engine.speculation import Speculation
from prolepsis.engine.timings import Timings, timed
from prolepsis.engine.watchdog import StepWatch

log = structlog.get_logger(__name__)

MAX_FAILED_STEPS = 3  # failed steps in a row after which the engine gives up


@dataclass(frozen=True, slots=True)
class EngineParts:
    info: EngineInfo
    plan: AppliedPlan  # the scheduler reads it too: the stats of a request name the plan under which it ended
    scheduler: Scheduler
    speculation: Speculation
    runner: PassRunner
    verifier: StepVerifier
    observer: EngineObserver | None = None
    hidden_states: HiddenStateRouter = field(default_factory=HiddenStateRouter)
    draft_heads: Mapping[str, DraftHeadSlot] = field(default_factory=dict)
    """By proposer; empty if the engine takes no draft head."""
    installed_heads: Callable[[], Sequence[InstalledHead]] = tuple  # reads the registry
    stuck_after_s: float | None = None  # seconds after which a step is given up by a watchdog; None: never
    processor: Callable[[], Callable[[], float]] | None = None  # as in `StepWatch`


class Engine:
    """Serves requests step by step. Everything but `send`, `validate`, `compile`, `load_head`, `health` and `info`
    belongs to one thread.

    Each accepted request gets exactly one terminal event. A step that raises fails the requests it was for; after
    several in a row, or if page accounting does not add up, the engine is dead: all its requests fail with
    `EngineDead`. A fault in deciding about drafts, or in figures, fails no step (`engine.containment`).
    """

    def __init__(self, parts: EngineParts, clock: Callable[[], float] = time.monotonic) -> None:
        self.info = parts.info
        self.timings = Timings()
        self.dead: EngineDead | None = None
        self.clock = clock
        assert parts.scheduler.plan is parts.plan, "the scheduler reads the engine's plan"
        self.plan = parts.plan
        self.scheduler = parts.scheduler
        self.speculation = parts.speculation
        self.runner = parts.runner
        self.hidden_states = parts.hidden_states
        self._verifier = parts.verifier
        self._faults = Faults(parts.speculation.proposers, parts.verifier, parts.info.vocab_size)
        self._draft_heads = parts.draft_heads
        self.installed_heads = parts.installed_heads
        self.contained: Containment = parts.scheduler.contained
        self._reporter = Reporter(parts.observer, parts.speculation.proposers, self.contained)
        self._inbox: SimpleQueue[Message | None] = SimpleQueue()
        self._refused: list[Event] = []
        self._rows: list[Row] = []
        self._num_failed_steps = 0
        self._committed_at = 0.0
        """When the tokens of the last step were committed, which is the end of a request for it."""
        self._forgetting: deque[SequenceState] = deque()
        """Ended sequences that proposers have not been called for yet."""
        self.watch = StepWatch(parts.stuck_after_s, clock=clock, processor=parts.processor)

    def step(self) -> list[Event]:
        self.watch.begin()
        with self._contained():
            self._drain()
            rows: Sequence[Row] = self._schedule()
            if rows:
                rows, aux_layers = self._propose(rows)
                computed = self._forward(rows, aux_layers)
                rows = computed.rows or rows
                sampled = self._verify(rows, computed)
                self._commit(rows, sampled, computed)
                self._observe(rows, sampled)
        events = self._take_events()
        self.watch.end()
        return events

    @property
    def has_work(self) -> bool:
        return bool(self.scheduler.requests) or not self._inbox.empty()

    def send(self, message: Message | None) -> None:
        """Put a message into the inbox, from any thread; None only wakes `wait`."""
        self._inbox.put(message)

    def wait(self, timeout_s: float | None = None) -> None:
        """Check that nothing is left over of past requests; then sleep until a message arrives, and handle it."""
        self.watch.begin()
        self._check()
        self._reporter.learned(self.info)
        while self._inbox.empty() and self.scheduler.keep_next():
            self.watch.begin()
        self.watch.rest()
        try:
            message = self._inbox.get(timeout=timeout_s)
        except Empty:
            return
        self.watch.begin()
        self._handle(message)
        self.watch.end()

    def validate(self, request: GenerateRequest) -> None:
        """Raise `UserError` if `request` cannot be served, `EngineDead` if nothing can; from any thread."""
        if self.dead is not None:
            raise self.dead
        self._differences(request)
        self.scheduler.validate(request)

    def compile(self, request: GenerateRequest) -> object:
        """Compile the grammar of `request`, from any thread but an event loop's: it may take a second.

        Hold the result until the request is accepted; the engine then reuses it. Raises `InvalidGrammar`.
        """
        return self.scheduler.compile(request)

    def load_head(self, name: str, proposer: HeadProposerName = DRAFT_HEAD) -> tuple[SwapHead, Future[HeadSwapped]]:
        """Load a draft head, from any thread but the engine's; return the message to send, and the future result.

        Raises `ModelError` if the head cannot be used, `MemoryPlanError` if its caches do not fit,
        `InvalidParameter` if the engine takes none.
        """
        if not self._draft_heads:
            raise InvalidParameter("this engine drafts nothing (num_speculative_tokens is 0)", param="draft_head")
        return self._draft_heads[proposer].load(name)

    def health(self) -> EngineHealth:
        """Return the state of the engine, from any thread."""
        scheduler, dead = self.scheduler, self.dead
        requests = list(scheduler.requests.values())
        detail = str(dead) if dead else self.watch.detail
        return EngineHealth(
            alive=dead is None,
            ready=not detail,
            detail=detail,
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            kv_usage=scheduler.kv_usage,
            max_running=scheduler.max_running,
            not_begun=tuple(request.request_id for request in requests if not request.begun),
            reading=tuple(progress for request in requests if (progress := request.progress) is not None),
        )

    def abort_all(self, reason: str) -> list[Event]:
        """End every request, those still in the inbox included, and return the events."""
        self.watch.begin()
        self._drain()
        for request_id in list(self.scheduler.requests):
            self.scheduler.abort(request_id, reason, self.clock())
        events = self._take_events()
        self.watch.end()
        return events

    def resume(self, call: WatchedCall) -> None:
        """Continue in another thread, with the next step, after a call of a proposer that did not come back in time.

        The step that the call belongs to had changed no sequence, or had committed its tokens already.
        """
        self.speculation.proposers.lose(call)

    def close_heads(self) -> None:
        """Take no further draft head: callers that wait for one get an error."""
        for slot in self._draft_heads.values():
            slot.close(self.dead or EngineDead("the engine is closed"))

    def close(self) -> None:
        self.close_heads()
        self.speculation.proposers.close()

    def die(self, error: BaseException | str) -> None:
        """Serve nothing from now on: fail every request."""
        self.dead = EngineDead(f"the engine ended: {error}")
        log.error("engine_dead", error=str(error))
        self.close_heads()
        self.scheduler.abandon(self.dead, self.clock())

    @timed("schedule")
    def _drain(self) -> None:
        while not self._inbox.empty():
            self._handle(self._inbox.get_nowait())

    def _handle(self, message: Message | None) -> None:
        match message:
            case Submit(request, arrival):
                self._submit(request, arrival)
            case Abort(request_id, reason):
                self.scheduler.abort(request_id, reason, self.clock())
            case OfferDraft(request_id, draft):
                self.scheduler.take_draft(request_id, draft)
            case ApplyPlan(plan):
                self.plan.apply(plan)
            case StopRun(name):
                self.plan.stop(name)
            case SetCorpora():
                self.speculation.proposers.take_corpora(message)
            case LearnedAcceptance(proposer, weights, state) if weights == self.info.weights_of(proposer):
                self.speculation.proposers.acceptance.begin_from(proposer, state)
            case SwapHead():
                self._swap_head(message)
            case InjectFault():
                self._verifier = self._faults.inject(message)

    def _submit(self, request: GenerateRequest, arrival: float) -> None:
        """Accept or refuse; a request that was sent without `validate` still gets a terminal event."""
        try:
            if self.dead is not None:
                raise self.dead
            differences = self._differences(request)
            self.scheduler.submit(request, arrival, heads=self._head_labels, not_exact=differences)
        except (UserError, EngineError) as error:
            if request.request_id in self.scheduler.requests:
                log.error("request_id_in_use", request_id=request.request_id)  # the one terminal event is the first's
            else:
                self._refused.append(Failed(request.request_id, error, RequestStats()))
        except Exception as error:  # contained: one request that cannot even be opened must not take the engine along
            log.exception("submit_failed")
            self._refused.append(Failed(request.request_id, EngineError(f"not accepted: {error!r}"), RequestStats()))

    def _differences(self, request: GenerateRequest) -> tuple[str, ...]:
        """Return why what follows the tokens of another engine may differ here; raises `OtherExactGroup`."""
        continuation = request.continue_from
        if continuation is None:
            return ()
        differences = continuation.differences(self.info.exact_group)
        if differences and continuation.outside_group == "refuse":
            message = f"the answer was begun in another exact group: {'; '.join(differences)}; allowed: the same group"
            raise OtherExactGroup(message, param="continue_from")
        return differences

    def _swap_head(self, message: SwapHead) -> None:
        proposers, slot = self.speculation.proposers, self._draft_heads[message.proposer]
        finish = slot.activate(message, proposers, self.hidden_states, self.timings.num_steps)
        if finish is not None:
            self.speculation.exchanged(message.proposer)
            self.scheduler.exchange_head(message.proposer)
            labels, is_first = self._head_labels, message.proposer == DRAFT_HEAD
            self.info = replace(
                self.info,
                draft_head=labels.get(DRAFT_HEAD),
                draft_head_reason="swapped while serving" if is_first else self.info.draft_head_reason,
                candidate_head=labels.get(CANDIDATE_HEAD),
                learnt_head=labels.get(LEARNT_HEAD),
                proposers=proposers.names,
            )
            finish()

    @property
    def _head_labels(self) -> Mapping[str, str]:
        return {name: slot.label for name, slot in self._draft_heads.items() if slot.label is not None}

    @timed("schedule")
    def _schedule(self) -> list[Row]:
        self._rows = self.scheduler.schedule(self.clock())
        return self._rows

    @timed("propose")
    def _propose(self, rows: Sequence[Row]) -> tuple[list[Row], tuple[int, ...]]:
        drafted = self.scheduler.attach(self._decided(rows))
        return drafted, self.hidden_states.begin(drafted, partial(self._may_draft, self.plan.current))

    def _decided(self, rows: Sequence[Row]) -> list[Row]:
        """Return the rows with the drafts to verify; plain ones if deciding fails, which then starts over."""
        with self.contained.of("decisions"):
            return self.speculation.propose(rows, self.plan.current)
        with self.contained.of("decisions"):
            self.speculation.start_over()
        may_draft = [row.decodes and row.sequence.request.source.speculation.enabled for row in rows]
        undecided = zip(rows, may_draft, strict=True)
        return [replace(row, plain="decision_failed") if might else row for row, might in undecided]

    def _may_draft(self, plan: SpecPlan, sequence: SequenceState, proposer: str) -> bool:
        with self.contained.of("decisions"):
            return self.speculation.decisions.may_draft(plan, sequence, proposer)
        return False

    @timed("forward")
    def _forward(self, rows: Sequence[Row], aux_layers: tuple[int, ...]) -> Computed:
        return self.runner.forward(rows, aux_layers)

    @timed("verify")
    def _verify(self, rows: Sequence[Row], computed: Computed) -> list[SampledTokens | None]:
        sampled = self._verifier.verify(rows, computed)
        self.runner.compact(rows, sampled)
        return sampled

    def _commit(self, rows: Sequence[Row], sampled: Sequence[SampledTokens | None], computed: Computed) -> None:
        self._feed(rows, sampled, computed)  # while sequences that end still hold their pages
        self._advance(rows, sampled)

    @timed("learn")
    def _feed(self, rows: Sequence[Row], sampled: Sequence[SampledTokens | None], computed: Computed) -> None:
        self.hidden_states.feed(rows, sampled, computed.features)

    @timed("commit")
    def _advance(self, rows: Sequence[Row], sampled: Sequence[SampledTokens | None]) -> None:
        self._committed_at = self.clock()
        self.scheduler.commit(rows, sampled, self._committed_at)

    @timed("learn")
    def _learn(self, rows: Sequence[Row], sampled: Sequence[SampledTokens | None]) -> None:
        timing = self.timings.step
        with self.contained.of("learning"):
            self.speculation.learn(rows, sampled, self.plan.current, timing.forward + timing.verify)

    def _observe(self, rows: Sequence[Row], sampled: Sequence[SampledTokens | None]) -> None:
        """Learn from a step whose tokens are committed; nothing here fails it any more."""
        self._num_failed_steps = 0
        self._learn(rows, sampled)
        timing = self.timings.finish(sum(row.num_scheduled_tokens for row in rows), len(rows))
        self.speculation.proposers.watch.passed(timing.forward)
        with self.contained.of("learning"):
            self.speculation.observe(rows, timing)
        with self.contained.of("learning"):
            self.scheduler.chunks.observe(rows, 1000.0 * timing.forward)
        with self.contained.of("figures"):
            charge(rows, timing, self.speculation.proposers.cost)
            keep_rounds(rows, sampled, timing, (self.watch.began or 0.0, self._committed_at), self.info.heads)
        self._reporter.step(timing, self.info)

    def _take_events(self) -> list[Event]:
        self._forgetting += self.scheduler.take_ended()
        while self._forgetting:  # first: where a proposer is overdue here, the events are still to be taken
            ended = [self._forgetting.popleft()]
            with self.contained.of("learning"):
                self.hidden_states.forget(ended)
            with self.contained.of("learning"):
                self.speculation.forget(ended)  # last: a thread whose call is overdue does not come back from it
        with self.contained.of("figures"):
            self.scheduler.count_judged(self.speculation.take_judged())
        events = self.scheduler.take_events()
        self._reporter.ended(events)
        if self._refused:
            events += self._refused
            self._refused = []
        return events

    @contextmanager
    def _contained(self) -> Iterator[None]:
        self._rows = []
        self.timings.begin()
        try:
            yield
        except Exception as error:  # contained: one bad step must not take other requests, or the server, with it
            log.exception("step_failed", rows=len(self._rows))
            self._fail_step(error)

    def _fail_step(self, error: Exception) -> None:
        """Fail the requests that the step was for; if it had no rows yet, all of them."""
        failed = {row.sequence.request.request_id for row in self._rows} or set(self.scheduler.requests)
        failure = StepFailed(f"a step failed: {error!r}")
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
