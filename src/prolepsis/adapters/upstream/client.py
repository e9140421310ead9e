"""Asks pools of upstream engines: each request goes to the one that its choice and the plan name."""

import asyncio
import json
import math
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from functools import partial
from itertools import count
from typing import Literal

import structlog

from prolepsis.adapters.upstream.answer import UpstreamAnswer, evidence
from prolepsis.adapters.upstream.api import Chunk
from prolepsis.adapters.upstream.capabilities import check_request
from prolepsis.adapters.upstream.metrics import UpstreamMetrics
from prolepsis.adapters.upstream.pool import Pool, PoolBusy, PoolFault, PoolLost, PoolMalformed
from prolepsis.adapters.upstream.replays import Replays
from prolepsis.adapters.upstream.route import is_replayed, origin_of, route_of
from prolepsis.adapters.upstream.sample import UpstreamSample
from prolepsis.core.config import DRAFT_HEAD, UPSTREAM, HeadProposerName, UpstreamApi
from prolepsis.core.engine_client import EngineHealth, EngineInfo, HeadSwapped, InstalledHead
from prolepsis.core.errors import (
    AnswerBroken,
    ContextTooLong,
    DeadlineExceeded,
    EngineDead,
    EngineError,
    InvalidParameter,
    ProlepsisError,
    UpstreamInvalid,
    UpstreamUnavailable,
    VocabularyMismatch,
)
from prolepsis.core.events import Aborted, Event, Failed, Finished, Terminal
from prolepsis.core.figures import EngineObserver, RequestDone
from prolepsis.core.messages import Abort, ApplyPlan, Control, StopRun
from prolepsis.core.plan import AppliedPlan, SpecPlan
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.stats import GrowingCounts, ProposerMemory, TrafficClassCounts
from prolepsis.engine.containment import Containment
from prolepsis.engine.drafting.ledger import DisabledProposers, Ledger
from prolepsis.engine.text.grammar.validation import broken
from prolepsis.engine.text.stream import Detokenizer, StopStrings

WATCH_S = 2.0
"""Between two looks at the pools."""
_LOOKS_A_SCRAPE = 5
_FIGURES_S = 5.0
"""For the figures that follow the end of a sample."""
_WITHOUT_TOKEN = 5
"""Times that a stream may be without a token as long as without a word: an engine may say that it is still there."""

Outcome = Literal["finished", "left", "refused", "busy", "lost"]

log = structlog.get_logger(__name__)


class UpstreamClient:
    """An `EngineClient` over a pool that speculates and one that does not.

    A request that waits in a pool, or runs there, stays: plans and stopped runs count for those that come. If its pool
    fails, the other one serves it, or goes on after its tokens.
    """

    def __init__(
        self,
        info: EngineInfo,
        api: UpstreamApi,
        pools: Sequence[Pool],
        detokenizer: Detokenizer,
        metrics: UpstreamMetrics,
        *,
        plan: SpecPlan,
        eos_token_ids: Sequence[int] = (),
        observer: EngineObserver | None = None,
        max_running: int = 0,
    ) -> None:
        """`plan`: its ceiling is the most that the speculating pool drafts. `max_running`: most samples at once."""
        self.info = info
        self._api = api
        self._pools = {pool.name: pool for pool in pools}
        self._detokenizer = detokenizer
        self._metrics = metrics
        self._plan = AppliedPlan(plan)
        self._num_draft_tokens = plan.ceiling if "speculating" in self._pools else 0
        self._eos_token_ids = tuple(eos_token_ids)
        self._observer = observer
        self._contained = Containment()
        self._max_running = max_running
        self._ledger = Ledger((UPSTREAM,))
        self._disabled = DisabledProposers(self._ledger)
        self._answers: dict[str, UpstreamAnswer] = {}
        self._replays = Replays(self._replay)
        self._watching: asyncio.Task[None] | None = None
        self._closed = False

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        if self._closed:
            raise EngineDead("the engine is closed")
        self._watch()
        self._check(request)
        answer = self._answers[request.request_id] = self._opened(request)
        answer.task = asyncio.create_task(self._serve(answer))
        answer.task.add_done_callback(partial(self._put_end, answer))
        event: Event | Exception | None = None
        try:
            while not isinstance(event, Terminal):
                event = await answer.stream.events.get()
                if isinstance(event, Exception):
                    raise event
                yield event
        finally:
            answer.task.cancel()
            await asyncio.wait([answer.task])
            self._answers.pop(request.request_id, None)
            if not isinstance(event, Exception) and self._observer is not None:
                with self._contained.of("figures"):
                    stats = event.stats if isinstance(event, Terminal) else answer.stats()
                    self._observer.observe(RequestDone(stats))

    def send(self, control: Control) -> None:
        """Drafts of clients are ignored: an upstream drafts by itself, and the proposer `client` is not in `info`."""
        match control:
            case Abort(request_id):
                self._end(request_id, "client")
            case ApplyPlan(plan):
                self._plan.apply(plan)
            case StopRun(run):
                self._plan.stop(run)

    async def heads(self) -> Sequence[InstalledHead]:
        return ()

    async def swap_head(self, name: str, proposer: HeadProposerName = DRAFT_HEAD) -> HeadSwapped:
        """Refuse: drafts are the pool's own."""
        raise InvalidParameter(f"{proposer} is {name!r}; allowed with engine upstream: none", param=proposer)

    def health(self) -> EngineHealth:
        """Return what the last looks at the pools found: ready while one answers."""
        with suppress(RuntimeError):  # no event loop runs yet
            self._watch()
        pools = self._pools.values()
        down = [f"{pool.name} pool: {pool.detail}" for pool in pools if not pool.is_up]
        return EngineHealth(
            alive=not self._closed,
            ready=not self._closed and any(pool.is_up for pool in pools),
            detail="closed" if self._closed else "; ".join(down),
            num_running=sum(pool.time.num_requests for pool in pools),
            max_running=self._max_running,
        )

    def proposer_counts(self) -> Sequence[TrafficClassCounts]:
        """Return what the pool said of drafts since the start, without what they cost."""
        return self._ledger.counts()

    def proposer_memory(self) -> Sequence[ProposerMemory]:
        return ()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._watching is not None:
            self._watching.cancel()
        for request_id in list(self._answers):
            self._end(request_id, "shutdown")
        tasks = [answer.task for answer in self._answers.values() if answer.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._replays.close()
        for pool in self._pools.values():
            await pool.close()

    def _check(self, request: GenerateRequest) -> None:
        if request.request_id in self._answers:
            message = f"request_id {request.request_id!r} is in use; allowed: a new one"
            raise InvalidParameter(message, param="request_id")
        length, longest, vocab_size = len(request.prompt_token_ids), self.info.max_model_len - 1, self.info.vocab_size
        if length > longest:
            raise ContextTooLong.of(
                longest + 1, f"{length} in the prompt, where 1 or more must be left for the answer", param="prompt"
            )
        if not length or not all(0 <= token < vocab_size for token in request.prompt_token_ids):
            message = f"the prompt has {length} tokens; allowed: at least 1, from 0 to {vocab_size - 1}"
            raise InvalidParameter(message, param="prompt")
        request.params.validate(vocab_size)
        check_request(request, self._api)

    def _opened(self, request: GenerateRequest) -> UpstreamAnswer:
        samples = self._samples(request)
        plan = self._plan.current
        route = route_of(request, plan, self._api, self._num_draft_tokens, self._disabled)
        if route.pool == "speculating":
            self._ledger.add(UPSTREAM, origin_of(request), GrowingCounts(num_asked=request.n))
        return UpstreamAnswer(request, route, plan.version, samples)

    def _samples(self, request: GenerateRequest) -> list[UpstreamSample]:
        stop = StopStrings.of(request.params.stop)
        return [
            UpstreamSample(
                request,
                index,
                eos_token_ids=self._eos_token_ids,
                detokenizer=self._detokenizer,
                stop=stop,
                max_model_len=self.info.max_model_len,
            )
            for index in range(request.n)
        ]

    async def _replay(self, request: GenerateRequest) -> None:
        """Count what the speculating pool says of its drafts for a request that another pool has answered."""
        pool, [sample] = self._pools["speculating"], self._samples(request)
        if pool.facts is None:
            return
        self._ledger.add(UPSTREAM, origin_of(request), GrowingCounts(num_asked=1))
        pool.time.enter()
        try:
            async with aclosing(_chunks(pool, sample, pool.facts.model)) as chunks:
                async for chunk in chunks:
                    sample.take(chunk)
        finally:
            pool.time.leave()
            self._metrics.answered(pool.name, "replayed")
        if sample.drafts is not None and sample.drafts.num_draft_tokens:
            self._ledger.add(UPSTREAM, origin_of(request), evidence(sample.drafts, self._num_draft_tokens))

    def _end(self, request_id: str, reason: str) -> None:
        answer = self._answers.get(request_id)
        if answer is not None and answer.task is not None and answer.aborted is None:
            answer.aborted = reason
            answer.task.cancel()

    async def _serve(self, answer: UpstreamAnswer) -> None:
        """Have all samples served; the first one that fails ends the others."""
        async with asyncio.timeout(answer.request.deadline_s):
            tasks = [asyncio.create_task(self._serve_sample(answer, sample)) for sample in answer.samples]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    def _put_end(self, answer: UpstreamAnswer, task: asyncio.Task[None]) -> None:
        """Put what ends the request for its reader, or what refuses it; its task has ended."""
        request_id, stats = answer.request.request_id, answer.stats()
        if drafts := stats.proposers.get(UPSTREAM):
            self._ledger.add(UPSTREAM, origin_of(answer.request), evidence(drafts, self._num_draft_tokens))
        if task.cancelled():
            answer.stream.put(Aborted(request_id, stats, answer.aborted or "client"))
            return
        error = task.exception()
        if error is None:
            answer.stream.put(Finished(request_id, stats))
            if is_replayed(answer.request, answer.route, self._api):
                self._replays.offer(answer.request)
        elif isinstance(error, TimeoutError) and answer.request.deadline_s is not None:
            late = DeadlineExceeded.unfinished(answer.request.deadline_s)
            answer.stream.put(Failed(request_id, late, stats))
        elif not isinstance(error, ProlepsisError):
            log.error("upstream_request_failed", request_id=request_id, exc_info=error)
            answer.stream.put(Failed(request_id, EngineError("the request failed; the error has been logged"), stats))
        elif stats.num_output_tokens:
            answer.stream.put(Failed(request_id, error, stats))
        else:
            answer.stream.events.put_nowait(error)

    async def _serve_sample(self, answer: UpstreamAnswer, sample: UpstreamSample) -> None:
        """Have a sample served by the first pool that answers; raises `UpstreamUnavailable` where none does, and
        `UpstreamInvalid` where the last one's answer made no sense.
        """
        whys: list[str] = []
        is_malformed = False
        lost_at: float | None = None
        for name in answer.route.pools:
            pool = self._pools.get(name)
            if pool is None or not sample.may_continue:
                continue
            try:
                await self._attempt(answer, sample, pool, lost_at)
                return
            except PoolBusy as busy:
                whys.append(f"{name} pool: {busy}")
            except PoolLost as lost:
                is_malformed = isinstance(lost, PoolMalformed)
                whys.append(f"{name} pool: {lost}")
                # one that failed at a single request is asked for its health before it counts as down
                if isinstance(lost, PoolFault) and pool.is_up:
                    await self.look(pool)
                else:
                    pool.down(str(lost))
                    self._metrics.up(pool.name, is_up=False)
                if sample.ended:
                    return
                lost_at = sample.told_at or None
        if answer.route.is_stopped:
            whys.append(f"the request is to be plain ({answer.route.reason}), so no pool that speculates serves it")
        what = "no upstream engine serves the request: " + "; ".join(whys)
        raise UpstreamInvalid(what) if is_malformed else UpstreamUnavailable(what)

    async def _attempt(self, answer: UpstreamAnswer, sample: UpstreamSample, pool: Pool, lost_at: float | None) -> None:
        """Have a pool serve what is left of a sample.

        `lost_at`: when another one, which was lost in the middle of it, brought its last tokens.
        """
        if pool.facts is None:
            raise PoolLost(pool.detail)
        began, first = pool.time.enter(), None
        outcome: Outcome = "left"
        try:
            async with aclosing(_chunks(pool, sample, pool.facts.model)) as chunks:
                async for chunk in chunks:
                    if any(token >= self.info.vocab_size for token in chunk.token_ids):
                        raise PoolMalformed(f"says token {max(chunk.token_ids)}, which the model does not have")
                    if sample.ended and chunk.token_ids and chunk.finish is None:
                        break  # the engine does not know of this end
                    if self._api == "llama.cpp" and chunk.finish == "stop":
                        await self._check_answer(answer.request, sample, chunk)
                    num_before, now = sample.num_output_tokens, time.monotonic()
                    if answer.take(sample, chunk, pool.name) and first is None:
                        first = pool.time.read()
                        if lost_at is not None:
                            answer.continued(num_before, now - lost_at)
            if not sample.ended:
                raise PoolLost("ended a stream without saying how")
            outcome = "finished"
        except (InvalidParameter, PoolBusy, PoolLost) as error:
            outcome = "busy" if isinstance(error, PoolBusy) else "lost" if isinstance(error, PoolLost) else "refused"
            raise
        finally:
            ended = pool.time.leave()
            middle = ended if first is None else first
            answer.charge(middle - began, ended - middle)
            self._metrics.answered(pool.name, outcome)

    async def _check_answer(self, request: GenerateRequest, sample: UpstreamSample, last: Chunk) -> None:
        """Raise `AnswerBroken` if a sample that ends by itself breaks its schema: llama.cpp may drop parts of that."""
        if request.grammar is None or request.grammar.kind != "json_schema" or sample.ended:
            return
        tokens = [*sample.tokens[len(request.prompt_token_ids) :], *last.token_ids]
        text = self._detokenizer.decode(tokens)
        fault = await asyncio.to_thread(broken, json.loads(request.grammar.source), text)
        is_cut = bool(request.params.stop or request.params.stop_token_ids)
        if fault is not None and not is_cut:
            raise AnswerBroken.of(fault, "the upstream engine's")

    def _watch(self) -> None:
        if self._watching is None and not self._closed:
            self._watching = asyncio.get_running_loop().create_task(self._keep_watching())

    async def _keep_watching(self) -> None:
        for num_looks in count():
            scrapes = num_looks % _LOOKS_A_SCRAPE == 0
            await asyncio.gather(*(self._look_and_scrape(pool, scrapes=scrapes) for pool in self._pools.values()))
            await asyncio.sleep(WATCH_S)

    async def _look_and_scrape(self, pool: Pool, *, scrapes: bool) -> None:
        try:
            await self.look(pool)
            if scrapes and pool.is_up and pool.name == "speculating":
                self._metrics.drafted(await pool.draft_totals())
        except Exception:  # contained: the next look may do better
            log.exception("upstream_not_looked_at", pool=pool.name)

    async def look(self, pool: Pool) -> None:
        """Ask a pool that is up for its health, and check one that is down."""
        if pool.is_up:
            if not await pool.is_alive():
                pool.down("its /health does not answer, or says no")
        else:
            try:
                facts = await asyncio.to_thread(pool.check)
                if facts.max_model_len < self.info.max_model_len:
                    raise PoolLost(f"its context has {facts.max_model_len} tokens; needed: {self.info.max_model_len}")
                pool.up(facts)
            except (PoolLost, VocabularyMismatch) as error:
                pool.down(str(error))
        self._metrics.up(pool.name, is_up=pool.is_up)


async def _chunks(pool: Pool, sample: UpstreamSample, model: str) -> AsyncGenerator[Chunk, None]:
    """Yield what a pool says of a sample; raises `PoolLost` where its next token does not come in time."""
    clock, seen = asyncio.get_running_loop().time, (-1, False)
    silent_s = until = math.inf if pool.silent_s is None else pool.silent_s
    async with aclosing(pool.stream(sample.ask(model))) as said:
        while True:
            if seen != (seen := (sample.num_output_tokens, sample.ended)):
                until = clock() + (min(_FIGURES_S, silent_s) if sample.ended else _WITHOUT_TOKEN * silent_s)
            try:
                async with asyncio.timeout_at(until):
                    chunk = await anext(said)
            except StopAsyncIteration:
                return
            except TimeoutError:
                if sample.ended:  # a stream may go on for ever after it
                    return
                raise PoolLost(f"says no token for {_WITHOUT_TOKEN * silent_s:g} s") from None
            yield chunk
