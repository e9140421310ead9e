"""Lets requests through to the engine: limits, queue, deadline, stored answers, and the accounts at the end."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace

from starlette.requests import HTTPConnection

from prolepsis.control.web import refusals
from prolepsis.control.web.caller import Caller, caller_of
from prolepsis.control.web.errors import RequestAborted
from prolepsis.control.web.feature import Feature
from prolepsis.control.web.refusals import Refused
from prolepsis.control.web.reply_headers import reply_headers
from prolepsis.core.config import ServerConfig
from prolepsis.core.ended import Keep
from prolepsis.core.engine_client import Demand, EngineClient, EngineHealth, PromptProgress
from prolepsis.core.errors import ClientDeadlineExceeded, DeadlineExceeded, InvalidParameter
from prolepsis.core.messages import ApplyPlan
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import BACKGROUND, GenerateRequest
from prolepsis.engine.shares import share_of
from prolepsis.server.admission.fair_queue import FairQueue, Waiting
from prolepsis.server.admission.group import Progress, RequestGroup, ResponseCache, cache_key
from prolepsis.server.admission.load_shedding import BACKGROUND_TIER, PATIENT, TIERS, LoadShedder, ShedSettings
from prolepsis.server.admission.metrics import AdmissionMetrics
from prolepsis.server.admission.rate_limits import FindBucket, Limits, RateLimits

DEFAULT_IN_ENGINE = 64
TIMEOUT_HEADER = "x-request-timeout-ms"
CACHE_HEADER = "x-response-cache"
FIRST, FURTHER, BATCH = 0, 1, 3
"""Priorities in the engine: of a tenant's first request there, of its further ones, of batch work. A request with more
samples than its share of the places (`engine.shares`) counts as further ones: else it could keep other tenants out."""
_PATIENT_PRIORITY: Mapping[str, int] = {"batch": BATCH, BACKGROUND_TIER: BACKGROUND}
_CHARGED = "charged"
_LONGEST_WAIT_STATED_S = 60.0


def was_charged(http: HTTPConnection) -> bool:
    """Return whether tokens were charged for a request that has ended."""
    return bool(http.scope["state"].get(_CHARGED))


def become_economy(http: HTTPConnection) -> None:
    """Move a request to the tier economy, unless its key's tier has no larger share."""
    caller = caller_of(http)
    if TIERS[caller.tier].weight > TIERS["economy"].weight:
        http.scope["state"]["caller"] = replace(caller, tier="economy")


class AdmissionController(Feature):
    """Everything that generates goes through `admit` and `start`. Belongs to one event loop."""

    name = "admission"
    period_s = 0.2

    def __init__(
        self,
        config: ServerConfig,
        client: EngineClient,
        metrics: AdmissionMetrics,
        base_plan: SpecPlan | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        apply_plan: Callable[[SpecPlan], None] | None = None,
        find_bucket: FindBucket | None = None,
    ) -> None:
        """`apply_plan` gets what load leaves of the plan; default: the engine. `find_bucket` returns the buckets of
        the rate limits; default: this server's own.

        Raises `ConfigError` for limits that mean nothing.
        """
        self.draining = False
        self.drilled_by: str | None = None
        """The only key whose requests are taken, while a drill runs."""
        self.num_inside = 0
        """HTTP requests that wait or run."""
        self._config = config
        self._client = client
        self.metrics = metrics
        self.reading: Mapping[str, PromptProgress] = {}
        """By request, at the last tick: how far the prompts were read that are not read whole."""
        self._clock = clock
        self._places = config.max_in_engine or client.health().max_running or DEFAULT_IN_ENGINE
        self._taken = 0
        self._num_samples = 0
        """Samples of the requests that hold places: more than these, where some are spare in the engine."""
        self._taken_by: Counter[str] = Counter()
        """Places by tenant."""
        self._taken_first = 0
        """Places of requests that were their tenants' first."""
        self._taken_background = 0
        """Places of background work, which any other request takes over."""
        self._queue = FairQueue()
        self._admitted: dict[str, Waiting] = {}
        """The requests that hold places, by id."""
        self._turns: dict[int, asyncio.Future[None]] = {}
        """What each waiting request, by its serial number, waits for: room in the engine."""
        limits = Limits(config.requests_per_minute, config.tokens_per_minute)
        self._rates = RateLimits(limits, clock(), find_bucket)
        self._cache = ResponseCache(config.response_cache_bytes, config.limits.response_cache_ttl_s, clock)
        settings = ShedSettings(config.shed_after_s, config.limits.shed_hold_s)
        apply_plan = apply_plan or (lambda plan: client.send(ApplyPlan(plan)))
        self.overload = LoadShedder(settings, base_plan or SpecPlan(), apply_plan, metrics)

    @contextmanager
    def admit(
        self, http: HTTPConnection, requests: Sequence[GenerateRequest], *, deterministic: bool = False
    ) -> Iterator[RequestGroup]:
        """Let in all `requests` of one HTTP request or none, and charge them once; leave the block when all have ended.

        `deterministic`: the same request gives the same tokens (temperature 0, or the caller gave the seed), so its
        answer may be stored and be a stored one. Raises `Refused`, and `InvalidParameter` for more requests than could
        ever come in together.
        """
        caller = caller_of(http)
        limits = self._limits(http, requests[0])
        items = [self._look_up(caller, request, deterministic=deterministic) for request in requests]
        deadline_s = min(filter(None, limits), default=None)
        group = RequestGroup(caller, items, deadline_s, is_client_deadline=deadline_s != limits[0])
        headers = reply_headers(http)
        headers.update(self._reserve(group))
        if any(item.cache_key is not None for item in items):
            headers[CACHE_HEADER] = "miss" if group.to_run else "hit"
        self.num_inside += 1
        try:
            yield group
        finally:
            self.num_inside -= 1
            self._rates.settle(caller, group.cost, group.num_used, self._clock())
            http.scope["state"][_CHARGED] = group.num_used > 0

    @asynccontextmanager
    async def start(self, group: RequestGroup, number: int) -> AsyncIterator[GenerateRequest]:
        """Wait until a request of `group` may run and yield what to ask of whom; leave the block when it has ended.

        Raises `DeadlineExceeded` where the wait was too long.
        """
        progress = group.items[number]
        if progress.stored:
            yield progress.request
            return
        try:
            async with self._place(group, progress) as place:
                with self._deadline_named(group, progress):
                    yield _as_admitted(group, progress, place)
        finally:
            if progress.cache_key is not None and progress.finished is not None:
                self._cache.put(progress.cache_key, progress.kept, progress.finished.stats)
                self.metrics.cache_bytes.set(self._cache.num_bytes)

    def check_open(self, caller: Caller) -> None:
        """Raise `Refused` if `admit` would now refuse every request of the caller; saves the work before it."""
        may_be_stored = bool(self._cache.max_bytes)  # such an answer takes no room in the queue
        self._check_open(caller, 0 if may_be_stored else 1, 1)
        self._rates.check(caller, self._clock())

    def admit_small(self, http: HTTPConnection) -> None:
        """Let in a request that asks nothing of the engine; it counts as a request of no tokens. Raises `Refused`."""
        caller = caller_of(http)
        self._check_open(caller, 0, 1)
        reply_headers(http).update(self._rates.reserve(caller, 0, self._clock()))

    async def tick(self) -> None:
        demand = self.demand
        self.reading = {prompt.request_id: prompt for prompt in self._client.health().reading}
        if not self._config.max_in_engine:  # replicas come and go
            self._places = self._client.health().max_running or self._places
        now = self._clock()
        ages = {tenant: now - since for tenant, since in self._oldest_of_tenants().items()}
        self.overload.observe(ages, self._taken_by.keys() | self._queue.tenants(), now)
        self._dispatch()
        self.metrics.queue_age.set(demand.queue_age_s)
        self.metrics.in_engine.set(self._num_samples)
        for tier in TIERS:
            self.metrics.queued.labels(tier).set(self._queue.num_of_tier(tier))

    def drain(self) -> None:
        """Take nothing new; what waits or runs continues."""
        self.draining = True

    async def close(self) -> None:
        self.end_waiting()

    def end_waiting(self) -> None:
        """Fail what still waits: the server ends."""
        for granted in self._turns.values():
            if not granted.done():
                granted.set_exception(RequestAborted("The request was aborted: shutdown."))

    def health(self) -> EngineHealth:
        health = self._client.health()
        return replace(health, num_waiting=health.num_waiting + len(self._queue))

    def has_room(self, most_running: int | None) -> bool:
        """Return whether background work may run: places are free, nothing waits and nothing is shed.

        `most_running`: samples that may run meanwhile; None: any number.
        """
        most = self._places - 1 if most_running is None else min(most_running, self._places - 1)
        return self._num_samples <= most and not self._queue and self.overload.level == 0 and not self.draining

    def background_room(self, num_in_flight: int) -> int:
        """Return how many more requests of background work may start now; those in flight may not be here yet.

        A place stays free for replays, and for others half of a configured number.
        """
        if self._queue or self.overload.level or self.draining or self.drilled_by is not None:
            return 0
        most = max(1, self._places // 2 if self._config.max_in_engine else self._places - 1)
        num_coming = max(0, num_in_flight - self._taken_background)
        return max(0, min(self._places - self._num_samples, most - self._taken_background) - num_coming)

    @property
    def num_places(self) -> int:
        return self._places

    @property
    def num_waiting(self) -> int:
        return len(self._queue)

    @property
    def demand(self) -> Demand:
        oldest = min(self._oldest_of_tenants().values(), default=None)
        return Demand(0.0 if oldest is None else self._clock() - oldest, len(self._queue))

    def _oldest_of_tenants(self) -> dict[str, float]:
        """Return since when the oldest request of each tenant waits: here, or in the engine for its first pass."""
        oldest = self._queue.oldest_of_tenants(PATIENT)
        for name in self._client.health().not_begun:
            waiting = self._admitted.get(name)
            if waiting is not None and waiting.tier not in PATIENT:
                oldest[waiting.tenant] = min(waiting.since, oldest.get(waiting.tenant, waiting.since))
        return oldest

    def _reserve(self, group: RequestGroup) -> dict[str, str]:
        """Charge the group, or raise what refuses it; return headers of the reply."""
        number, samples = len(group.to_run), group.items[0].request.n
        # what does not fit even into an idle server
        most = self._places // min(samples, share_of(self._places)) + min(self._room(group.caller.tier))
        if number > most:
            message = f"prompt holds {number} prompts; allowed: {most} at once, as many as may run and wait together"
            raise InvalidParameter(message, param="prompt")
        try:
            self._check_open(group.caller, number, samples)
            return self._rates.reserve(group.caller, group.cost, self._clock())
        except Refused as refused:  # a stream answers it by itself, past the error handler
            self.metrics.refuse(refused)
            raise

    def _check_open(self, caller: Caller, number: int, samples: int) -> None:
        """Raise `Refused` where `number` requests of so many samples may not come in together."""
        tier = caller.tier
        if self.draining:
            raise refusals.draining()
        if self.drilled_by not in (None, caller.key_id):
            raise refusals.draining("runs a drill")
        if self.overload.refuses(caller.tenant, tier):
            raise refusals.shed(tier, self._config.limits.shed_hold_s)
        num_to_wait = number - self._num_at_once(caller, samples)
        if num_to_wait > 0:
            tiers = PATIENT if caller.tier in PATIENT else TIERS.keys() - PATIENT
            limit, tenant_limit = self._room(caller.tier)
            if sum(map(self._queue.num_of_tier, tiers)) + num_to_wait > limit:
                raise refusals.server_full(limit, self._wait_guess_s(tiers))
            if self._queue.num_of_tenant(caller.tenant, tiers) + num_to_wait > tenant_limit:
                raise refusals.queue_full(tenant_limit, self._wait_guess_s(tiers))

    def _num_at_once(self, caller: Caller, samples: int) -> int:
        """Return how many requests of so many samples are next in turn for a free place."""
        num_free = self._places - self._taken_against(caller.tier)
        if self._holds(caller.tenant, caller.tier):
            return 0
        if num_free <= 0 or self._queue.peek(self._holds) is not None:
            has_none = not self._queue.num_of_tenant(caller.tenant)  # else this one waits behind its own
            return int(has_none and self._displaces(caller.tenant, caller.tier, samples))
        return max(1, num_free // min(samples, share_of(self._places)))

    def _room(self, tier: str) -> tuple[int, int]:
        """Return how many requests may wait of tiers as patient as `tier`, and how many of these of one tenant.

        Patient tiers have half as much room again for themselves: they may wait long without locking out the others.
        """
        room = self._config.limits.max_queued, self._config.limits.max_queued_per_tenant
        return ((room[0] + 1) // 2, (room[1] + 1) // 2) if tier in PATIENT else room

    def _wait_guess_s(self, tiers: Collection[str]) -> float:
        """Who waits longest has waited this long, so room is not to be expected much sooner."""
        oldest = self._queue.oldest(TIERS.keys() - tiers)
        return 1.0 if oldest is None else min(max(1.0, self._clock() - oldest), _LONGEST_WAIT_STATED_S)

    def _limits(self, http: HTTPConnection, request: GenerateRequest) -> Sequence[float | None]:
        is_background = caller_of(http).tier == BACKGROUND_TIER  # it has the time of its batch
        limits = [None if is_background else self._config.request_timeout_s, request.deadline_s]
        given = http.headers.get(TIMEOUT_HEADER)
        if given is not None:
            if not (given.isascii() and given.isdigit() and 0 < len(given) <= 9 and int(given)):
                message = f"{TIMEOUT_HEADER} is {given[:32]!r}; allowed: 1 to 999999999 (milliseconds)"
                raise InvalidParameter(message, param=TIMEOUT_HEADER)
            limits.append(int(given) / 1000)
        return limits

    def _look_up(self, caller: Caller, request: GenerateRequest, *, deterministic: bool) -> Progress:
        if not deterministic or not self._cache.max_bytes:
            return Progress(request)
        key = cache_key(request, caller.tenant, self._client.info.fingerprint)
        stored = self._cache.get(key)
        self.metrics.cache.labels("hit" if stored else "miss").inc()
        return Progress(request, stored=stored, keep=Keep.TOKENS, cache_key=key)

    @asynccontextmanager
    async def _place(self, group: RequestGroup, progress: Progress) -> AsyncIterator[Waiting]:
        since, caller, load, request = self._clock(), group.caller, progress.load, progress.request
        waiting = Waiting(caller.tenant, caller.tier, request.priority, load, request.n, since)
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.push(waiting)
        self._turns[waiting.serial] = granted
        self._dispatch()
        try:
            async with asyncio.timeout(group.deadline_s):
                await granted
        except TimeoutError:
            self._give_up(waiting, granted)
            self.metrics.refused.labels("deadline").inc()
            raise self._late(group, f"not started {group.deadline_s:g} s after its arrival") from None
        except BaseException:
            self._give_up(waiting, granted)
            raise
        self._admitted[request.request_id] = waiting
        progress.waited_s = self._clock() - since
        self.metrics.wait.labels(caller.tier).observe(progress.waited_s)
        try:
            yield waiting
        finally:
            self._admitted.pop(request.request_id, None)
            self._leave(waiting)
            self._queue.correct(waiting, load - progress.load_used)
            self._dispatch()

    @contextmanager
    def _deadline_named(self, group: RequestGroup, progress: Progress) -> Iterator[None]:
        """Name the time that a late request had from its arrival on; the engine knows only what the queue left."""
        try:
            yield
        except DeadlineExceeded as late:
            if group.deadline_s is None:
                raise
            message = f"{late} after it waited {progress.waited_s:.3f} s; allowed: {group.deadline_s:g} s in all"
            raise self._late(group, message) from None

    def _late(self, group: RequestGroup, message: str) -> DeadlineExceeded:
        """Return the error of a deadline that passed: a client's is no failure of a server whose engine works."""
        is_clients = group.is_client_deadline and self._client.health().ready
        return ClientDeadlineExceeded(message) if is_clients else DeadlineExceeded(message)

    def _give_up(self, waiting: Waiting, granted: asyncio.Future[None]) -> None:
        """The request does not run: take it out of the queue, or give its places back where it had just got them."""
        if self._turns.pop(waiting.serial, None) is not None:
            self._queue.drop(waiting)
        elif granted.done() and not granted.cancelled() and granted.exception() is None:
            self._leave(waiting)
        self._dispatch()

    def _dispatch(self) -> None:
        while (head := self._next()) is not None:
            granted = self._turns.pop(head.serial)
            if granted.done():
                self._queue.drop(head)  # cancelled a moment ago
                continue
            self._queue.start(head)
            # its other samples are spare in the engine, where they take only places that nothing else needs
            self._num_samples += head.size
            size = min(head.size, share_of(self._places))
            displaces = self._displaces(head.tenant, head.tier, head.size)
            head.is_first = self._is_first(head.tenant, head.tier, head.size)
            self._take(head, size if displaces else min(size, max(1, self._places - self._taken_against(head.tier))))
            granted.set_result(None)

    def _next(self) -> Waiting | None:
        """Return the next in turn if it fits.

        Else a tenant's first request does not wait behind it, where both are as far behind: it passes once, as its
        tenant is ahead from then on. Nothing else overtakes. One free place is enough, so what is large waits for no
        more than others do.
        """
        heads = self._queue.next_of_each(self._holds)
        if heads and self._taken_against(heads[0].tier) < self._places:
            return heads[0]
        return next((head for head in heads if self._displaces(head.tenant, head.tier, head.size)), None)

    def _taken_against(self, tier: str) -> int:
        """Return the places that a request of this tier finds taken; in the engine, background work gives way."""
        gives_way = tier != BACKGROUND_TIER and not self._config.max_in_engine
        return self._taken - (self._taken_background if gives_way else 0)

    def _holds(self, tenant: str, tier: str) -> bool:
        """Return whether requests stay in the queue: by load, and background work also while others wait."""
        if tier == BACKGROUND_TIER and len(self._queue) > self._queue.num_of_tier(BACKGROUND_TIER):
            return True
        return self.overload.holds(tenant, tier)

    def _is_first(self, tenant: str, tier: str, size: int) -> bool:
        is_small = size <= share_of(self._places)
        return is_small and not self._taken_by[tenant] and tier not in PATIENT

    def _displaces(self, tenant: str, tier: str, size: int) -> bool:
        """Return whether it goes to a full engine, which lets another tenant's further requests wait for it instead.

        So no tenant waits until another's long requests end. Configured places are never exceeded.
        """
        num_left = self._places - self._taken_first
        return self._is_first(tenant, tier, size) and size <= num_left and not self._config.max_in_engine

    def _leave(self, request: Waiting) -> None:
        self._num_samples -= request.size
        self._take(request, -request.places)

    def _take(self, request: Waiting, num_places: int) -> None:
        """Count places of a request that starts; a negative number gives them back."""
        request.places += num_places
        self._taken += num_places
        self._taken_by[request.tenant] += num_places
        if request.is_first:
            self._taken_first += num_places
        if request.tier == BACKGROUND_TIER:
            self._taken_background += num_places
        if not self._taken_by[request.tenant]:
            del self._taken_by[request.tenant]


def _as_admitted(group: RequestGroup, progress: Progress, place: Waiting) -> GenerateRequest:
    """Return the request with what is left of its times, and its priority in the engine.

    There a better priority preempts a running request. What a client asks for orders its own tenant's queue; in the
    engine it counts only from operators.
    """
    request, deadline_s = progress.request, group.deadline_s
    target = request.target and request.target.after(progress.waited_s)
    left_s = None if deadline_s is None else max(0.001, deadline_s - progress.waited_s)
    of_tier = _PATIENT_PRIORITY.get(place.tier, FIRST if place.is_first else FURTHER)
    is_asked = request.priority and group.caller.has("operator") and place.tier != BACKGROUND_TIER
    priority = request.priority if is_asked else of_tier
    return replace(request, deadline_s=left_s, target=target, priority=priority)
