"""The output policies over one answer, in their order; text remembers which characters of the answer it stands for."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Literal, TypeVar

import structlog
from prometheus_client import CollectorRegistry

from prolepsis.core.telemetry.declare import counter
from prolepsis.server.output.policy import AnswerFacts, AnswerReader, OutputPolicy, Rewrite, TextDecision

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SourceSpan:
    """Stands for the characters `start` to `end` of the answer's own text; `verbatim`: it is them."""

    text: str
    start: int
    end: int
    verbatim: bool = True

    def split(self, at: int) -> tuple["SourceSpan", "SourceSpan"]:
        """Return its first `at` characters and the rest; a replacement stands whole for what it replaced."""
        if self.verbatim:
            middle = self.start + at
            return SourceSpan(self.text[:at], self.start, middle), SourceSpan(self.text[at:], middle, self.end)
        return SourceSpan(self.text[:at], self.start, self.end, False), SourceSpan(
            self.text[at:], self.end, self.end, False
        )


def text_of(spans: Sequence[SourceSpan]) -> str:
    return "".join(span.text for span in spans)


def cut(spans: Sequence[SourceSpan], at: int) -> tuple[list[SourceSpan], list[SourceSpan]]:
    """Return the spans before character `at` of their joined text, and those from there on."""
    before: list[SourceSpan] = []
    for i, span in enumerate(spans):
        if not at and span.text:
            return before, list(spans[i:])
        if at < len(span.text):
            first, second = span.split(at)
            return [*before, first], [second, *spans[i + 1 :]]
        before.append(span)
        at -= len(span.text)
    return before, []


def rewritten(spans: Sequence[SourceSpan], rewrites: Sequence[Rewrite]) -> list[SourceSpan]:
    """Return the spans with parts of their joined text replaced; `rewrites` come one after another."""
    done: list[SourceSpan] = []
    left, position = list(spans), 0
    for change in rewrites:
        before, left = cut(left, change.start - position)
        replaced, left = cut(left, change.end - change.start)
        at = left[0].start if left else spans[-1].end
        start, end = (replaced[0].start, replaced[-1].end) if replaced else (at, at)
        done += [*before, SourceSpan(change.text, start, end, verbatim=False)]
        position = change.end
    return [*done, *left]


_MAX_THREADS = 16
_Value = TypeVar("_Value")


class Workers:
    """Runs calls in daemon threads, started as they are needed. Belongs to one event loop.

    A call whose caller has given up keeps its thread until it returns: threads that hang are not replaced, and
    where all of them do every later call is late.
    """

    def __init__(self, max_threads: int = _MAX_THREADS) -> None:
        self._max_threads = max_threads
        self._num_threads = 0
        self._num_busy = 0
        self._lock = threading.Lock()
        self._calls: SimpleQueue[tuple[Future[object], Callable[[], object]]] = SimpleQueue()

    async def run(self, work: Callable[[], _Value], timeout_s: float) -> _Value:
        """Return what `work` returns or raise what it raises; `TimeoutError` where that takes longer."""
        future: Future[_Value] = Future()
        self._calls.put((future, work))  # type: ignore[arg-type]  # the queue holds futures of all kinds
        with self._lock:
            self._num_busy += 1
            wanted = self._num_threads < min(self._num_busy, self._max_threads)
            self._num_threads += wanted
        future.add_done_callback(self._count_done)
        if wanted:
            threading.Thread(target=self._serve, name="output-policy", daemon=True).start()
        async with asyncio.timeout(timeout_s):
            return await asyncio.wrap_future(future)

    def _count_done(self, _: Future[Any]) -> None:
        with self._lock:
            self._num_busy -= 1

    def _serve(self) -> None:
        while True:
            future, work = self._calls.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                value = work()
            except BaseException as error:  # handed on to the waiting caller
                with suppress(Exception):
                    future.set_exception(error)
            else:
                future.set_result(value)


Fault = Literal[
    "raised",
    "late",  # no decision within the time limit
    "invalid",  # a decision that means nothing, such as to hold back the end of an answer that has ended
    "held_too_much",  # more characters than the limit wait
]
OnFault = Literal["closed", "open"]


@dataclass(frozen=True, slots=True)
class LoadedPolicy:
    """A policy and how it is kept within bounds."""

    name: str
    policy: OutputPolicy
    on_fault: OnFault  # effect of a fault on the answer: open: it passes unread; closed: it ends
    timeout_ms: float  # longest time for the tokens of one step
    max_held: int  # most characters that it may hold back

    @property
    def fails_open(self) -> bool:
        return self.on_fault == "open"


@dataclass(frozen=True, slots=True)
class FilterResult:
    """Result of one policy, or of all of them, for one step's tokens."""

    tokens: list[list[SourceSpan]]  # let through, token by token
    held: Sequence[SourceSpan] = ()  # text that waits for more text
    stopped_by: str | None = None
    """It ended the answer with the last of `tokens`: the reason, after NAME: where it is the result of all."""
    fault: Fault | None = None
    num_rewrites: int = 0


class PolicyFault(Exception):
    """A policy did not say what becomes of the text."""

    def __init__(self, kind: Fault) -> None:
        super().__init__(kind)
        self.kind: Fault = kind


class FilterStage:
    """Feeds one reader token by token. At the first fault the policy is out: all passes, or the answer ends.

    `take` changes nothing but the reader, so it may run in a thread and be given up; `settle` remembers what it found.
    """

    def __init__(self, loaded: LoadedPolicy, reader: AnswerReader) -> None:
        self.loaded = loaded
        self.reader: AnswerReader | None = reader  # None: the policy is out
        self._held: Sequence[SourceSpan] = ()

    def take(self, tokens: Sequence[Sequence[SourceSpan]], *, ended: bool) -> FilterResult:
        """Take one step's tokens (at least one), each as spans (maybe none); `ended`: nothing comes after the last."""
        passed: list[list[SourceSpan]] = []
        held, num_rewrites = list(self._held), 0
        for i, spans in enumerate(tokens):
            last = ended and i == len(tokens) - 1
            if self.reader is None or (not spans and not last):
                passed.append(list(spans))
                continue
            held += spans
            try:
                decision = self._decide(self.reader, held, ended=last)
            except PolicyFault as fault:
                return self._failed(passed, held, tokens[i + 1 :], fault.kind)
            num_rewrites += len(decision.rewrites)
            at = sum(len(span.text) for span in held) - decision.num_held
            out, held = cut(held, at if decision.stop_at is None else decision.stop_at)
            passed.append(rewritten(out, decision.rewrites) if decision.rewrites else out)
            if decision.stop_at is not None:
                return FilterResult(passed, (), decision.reason or "stopped", num_rewrites=num_rewrites)
        return FilterResult(passed, held, num_rewrites=num_rewrites)

    def fail(self, tokens: Sequence[Sequence[SourceSpan]], kind: Fault) -> FilterResult:
        """Give up on the policy before it said anything of `tokens` (at least one)."""
        return self._failed([], [*self._held, *tokens[0]], tokens[1:], kind)

    def settle(self, passed: FilterResult) -> None:
        """Remember what waits, and that a policy with a fault is out."""
        self._held = passed.held
        if passed.fault is not None:
            self.reader = None

    def _decide(self, reader: AnswerReader, held: Sequence[SourceSpan], *, ended: bool) -> TextDecision:
        pending = text_of(held)
        try:
            decision = reader.look(pending, ended=ended)
        except TimeoutError:  # as `regex` says that a pattern takes too long
            raise PolicyFault("late") from None
        except Exception as error:  # contained: it is plug-in code
            raise PolicyFault("raised") from error
        if not _means_something(decision, len(pending), ended=ended):
            raise PolicyFault("invalid")
        if decision.stop_at is None and decision.num_held > self.loaded.max_held:
            raise PolicyFault("held_too_much")
        return decision

    def _failed(
        self, passed: list[list[SourceSpan]], held: list[SourceSpan], left: Sequence[Sequence[SourceSpan]], kind: Fault
    ) -> FilterResult:
        if self.loaded.fails_open:
            return FilterResult([*passed, held, *(list(spans) for spans in left)], fault=kind)
        return FilterResult([*passed, []], stopped_by=kind, fault=kind)


def _means_something(decision: object, length: int, *, ended: bool) -> bool:
    if not isinstance(decision, TextDecision):
        return False
    limit = length - decision.num_held if decision.stop_at is None else decision.stop_at
    if not 0 <= limit <= length or (ended and decision.stop_at is None and decision.num_held):
        return False
    position = 0
    for change in decision.rewrites:
        if not position <= change.start <= change.end <= limit:
            return False
        position = change.end
    return True


class OutputMetrics:
    """By policy; policies are those of the configuration."""

    def __init__(self, registry: CollectorRegistry) -> None:
        text = "Decisions of output policies"
        self.decisions = counter(registry, "output_policy_decisions", text, "policy", "decision")
        text = "Answers for which a policy failed"
        self.faults = counter(registry, "output_policy_faults", text, "policy", "kind")
        self.seconds = counter(registry, "output_policy_seconds", "Time spent in output policies", "policy")


class OutputPolicies:
    """The configured output policies; makes a pipeline for each answer. Belongs to one event loop."""

    def __init__(self, loaded: Sequence[LoadedPolicy] = (), metrics: OutputMetrics | None = None) -> None:
        self.loaded = tuple(loaded)
        self._metrics = metrics
        self._workers = Workers()

    def pipeline(self, answer: AnswerFacts) -> "FilterPipeline | None":
        """Return the filters of this answer; None if it has none."""
        stages: list[FilterStage] = []
        for loaded in self.loaded:
            try:
                reader = loaded.policy.begin(answer)
            except Exception as error:  # contained: it is plug-in code
                log.warning("output_policy_failed", policy=loaded.name, kind="raised", error=repr(error))
                if loaded.fails_open:
                    self._count_fault(loaded, "raised")
                    continue
                reader = _RefusingReader()
            if reader is not None:
                stages.append(FilterStage(loaded, reader))
        return FilterPipeline(stages, self, self._workers) if stages else None

    def count(self, loaded: LoadedPolicy, passed: FilterResult, seconds: float) -> None:
        if self._metrics is None:
            return
        self._metrics.seconds.labels(loaded.name).inc(seconds)
        if passed.num_rewrites:
            self._metrics.decisions.labels(loaded.name, "rewrite").inc(passed.num_rewrites)
        if passed.held:
            self._metrics.decisions.labels(loaded.name, "hold_back").inc()
        if passed.stopped_by is not None:
            self._metrics.decisions.labels(loaded.name, "stop").inc()
        if passed.fault is not None:
            self._count_fault(loaded, passed.fault)

    def _count_fault(self, loaded: LoadedPolicy, kind: str) -> None:
        if self._metrics is not None:
            self._metrics.faults.labels(loaded.name, kind).inc()


class FilterPipeline:
    """Reads one answer."""

    def __init__(self, stages: Sequence[FilterStage], policies: OutputPolicies, workers: Workers) -> None:
        self._stages = stages
        self._policies = policies
        self._workers = workers

    async def take(self, tokens: Sequence[Sequence[SourceSpan]], *, ended: bool) -> FilterResult:
        """Take one step's tokens (at least one) and return what goes to the client of the answer so far.

        Every policy sees them one by one, so that steps of several tokens make no difference.
        """
        current: list[list[SourceSpan]] = [list(spans) for spans in tokens]
        stopped_by: str | None = None
        for stage in self._stages:
            if stage.reader is None:
                continue
            began = time.perf_counter()
            passed = await self._ask(stage, current, ended=ended or stopped_by is not None)
            self._policies.count(stage.loaded, passed, time.perf_counter() - began)
            stage.settle(passed)
            current = passed.tokens
            if passed.stopped_by is not None:
                stopped_by = f"{stage.loaded.name}: {passed.stopped_by}"
            if passed.fault is not None:
                log.warning("output_policy_failed", policy=stage.loaded.name, kind=passed.fault)
        return FilterResult(current, stopped_by=stopped_by)

    async def _ask(self, stage: FilterStage, tokens: list[list[SourceSpan]], *, ended: bool) -> FilterResult:
        if stage.loaded.policy.inline:
            return stage.take(tokens, ended=ended)
        try:
            return await self._workers.run(
                lambda: stage.take(tokens, ended=ended), timeout_s=stage.loaded.timeout_ms / 1000.0
            )
        except TimeoutError:
            return stage.fail(tokens, "late")


class _RefusingReader:
    """Stands for a policy that failed before it read anything and is to fail closed."""

    def look(self, pending: str, *, ended: bool) -> TextDecision:
        raise RuntimeError("the policy failed at its beginning")
