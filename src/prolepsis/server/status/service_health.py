"""Readiness by what requests get: a server most of whose requests fail is not ready, until requests succeed again."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from uuid import uuid4

import structlog
from prometheus_client import CollectorRegistry

from prolepsis.control.web.context import Context
from prolepsis.control.web.errors import describe_error
from prolepsis.control.web.feature import Feature
from prolepsis.core.ask import ask
from prolepsis.core.ended import FAILED, RequestEnded
from prolepsis.core.engine_client import EngineClient
from prolepsis.core.requests import UNCOUNTED_CLASS, GenerateRequest, SamplingParams
from prolepsis.core.telemetry.declare import gauge

CACHED_S = 1.0
TIMEOUT_S = 10.0
NUM_TOKENS = 8
"""The first comes from the prompt's pass; those after it may have drafts."""
SCOPE = "health"


@dataclass(frozen=True, slots=True)
class DeepHealth:
    healthy: bool
    detail: str
    ms: float


class DeepCheck:
    """Asks for a few tokens; answers within a second of the last, and those that ask meanwhile, share one result."""

    def __init__(self, client: EngineClient, *, timeout_s: float = TIMEOUT_S, cached_s: float = CACHED_S) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._cached_s = cached_s
        self._asking = asyncio.Lock()
        self._last: tuple[float, DeepHealth] | None = None

    async def result(self) -> DeepHealth:
        async with self._asking:
            if self._last is None or time.monotonic() - self._last[0] > self._cached_s:
                started, detail, num_tokens = time.monotonic(), "", 0
                request = GenerateRequest(
                    request_id=f"health-{uuid4().hex}",
                    prompt_token_ids=(0,),
                    params=SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True),
                    priority=-(2**31),
                    cache_salt=SCOPE,
                    traffic_class=UNCOUNTED_CLASS,
                )
                try:
                    async with asyncio.timeout(self._timeout_s):
                        num_tokens = len((await ask(self._client, request)).token_ids)
                except TimeoutError:
                    detail = f"not {NUM_TOKENS} tokens within {self._timeout_s:g} s"
                except Exception as error:  # a health check reports every failure
                    detail = str(describe_error(error))
                else:
                    detail = "" if num_tokens else "the engine ended without a token"
                ms = round(1000 * (time.monotonic() - started), 3)
                health = DeepHealth(not detail, detail or f"{num_tokens} tokens were generated", ms)
                self._last = (time.monotonic(), health)
            return self._last[1]


WINDOW_S = 60.0
LEAST_REQUESTS = 8
"""Requests in the window that say something, and that are enough to show that requests succeed again."""
SHARE = 0.5
"""Share of failed requests, as the mean over tenants, above which the server is not ready."""
_MOST = 1024  # of the last requests, at any rate
_CHECKS = 2  # deep checks in a row that end it where no request comes: load balancers send none meanwhile

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _End:
    at: float
    tenant: str
    error: str


class FailedShare:
    """The last requests of a minute, and whether most of them failed. Pure."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends: deque[_End] = deque(maxlen=_MOST)
        self.detail = ""
        """Why the server is not ready; empty if it is."""

    def add(self, tenant: str, error: str) -> None:
        """Count a request that finished (`error` is empty) or failed."""
        now = self._clock()
        self._ends.append(_End(now, tenant, error))
        while now - self._ends[0].at > WINDOW_S:
            self._ends.popleft()
        number = len(self._ends)
        if self.detail:
            number = min(number, LEAST_REQUESTS)  # the last ones show whether it is over
        if number >= LEAST_REQUESTS:
            last = list(self._ends)[-number:]
            errors = [end.error for end in last if end.error]
            summary = f"{len(errors)} of the last {len(last)} requests failed, the last of them with"
            self.detail = f"{summary} {errors[-1]}" if errors and _share(last) > SHARE else ""

    def clear(self) -> None:
        """Begin again: it is known from elsewhere that requests succeed."""
        self._ends.clear()
        self.detail = ""


def _share(ends: list[_End]) -> float:
    """Return the mean share of failed requests over tenants: one with bad requests does not stop the others."""
    shares: dict[str, list[int]] = {}
    for end in ends:
        of = shares.setdefault(end.tenant, [0, 0])
        of[0] += bool(end.error)
        of[1] += 1
    return sum(failed / number for failed, number in shares.values()) / len(shares)


class ServiceHealth(Feature):
    """Belongs to one event loop."""

    name = "service_health"
    period_s = 5.0

    def __init__(
        self, client: EngineClient, registry: CollectorRegistry, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.deep_check = DeepCheck(client)
        self._failed = FailedShare(clock)
        self._num_healthy = 0
        text = "1 while the server is not ready because most of its last requests failed"
        self._gauge = gauge(registry, "requests_failing", text)

    @property
    def detail(self) -> str:
        """Why the server is not ready; empty if it is."""
        return self._failed.detail

    def on_request_end(self, ended: RequestEnded) -> None:
        if ended.end != "finished" and ended.end not in FAILED:
            return  # its client ended it, or spelt it wrongly: that says nothing of the server
        before = self.detail
        self._failed.add(ended.about.tenant, (ended.error or ended.end) if ended.end in FAILED else "")
        self._follow(before)

    async def tick(self) -> None:
        """While requests fail, look whether the engine answers: no request may come that would show it."""
        if not self.detail:
            return
        health = await self.deep_check.result()
        self._num_healthy = self._num_healthy + 1 if health.healthy else 0
        if self._num_healthy >= _CHECKS:
            before = self.detail
            self._failed.clear()
            self._follow(before)

    def _follow(self, before: str) -> None:
        if bool(before) != bool(self.detail):
            self._num_healthy = 0
            self._gauge.set(bool(self.detail))
            if self.detail:
                log.error("requests_fail", detail=self.detail)
            else:
                log.info("requests_succeed_again", before=before)


def feature(context: Context) -> ServiceHealth:
    return ServiceHealth(context.client, context.registry)
