"""Plays a trace: real admission, policy and engine, on a virtual clock, with the passes of a machine."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from starlette.requests import Request

from prolepsis.control.policy.decision import Decision, SpeculationRequest, decide, decide_alone
from prolepsis.control.policy.model import DEFAULT_RULE, Policy
from prolepsis.control.web.caller import Caller
from prolepsis.control.web.errors import RequestRefused
from prolepsis.control.web.feature import running
from prolepsis.core.config import ServerConfig
from prolepsis.core.errors import ProlepsisError
from prolepsis.core.events import Terminal, Tokens
from prolepsis.core.facts import traffic_class_of
from prolepsis.core.requests import SpecMode
from prolepsis.core.stats import RequestStats
from prolepsis.engine.rehearsal.client import RehearsedClient
from prolepsis.engine.rehearsal.engine import Rehearsed, rehearsed_engine
from prolepsis.engine.rehearsal.machine import Machine
from prolepsis.engine.rehearsal.traced_request import TracedRequest
from prolepsis.engine.rehearsal.virtual_time import VirtualTime
from prolepsis.server.admission.controller import AdmissionController
from prolepsis.server.admission.metrics import AdmissionMetrics
from prolepsis.server.rehearsal.trace import Trace, TraceLine
from prolepsis.server.stream import never


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsedServer:
    """What serves the trace."""

    machine: Machine
    server: ServerConfig = field(default_factory=ServerConfig)
    policy: Policy | None = None
    mode: SpecMode = "auto"
    """What every request asks for: off is the plain baseline."""
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsedRequest:
    """What became of a request; times in seconds from its arrival."""

    line: TraceLine
    error: str | None = None
    """Code of what refused or ended it; its times are None then."""
    first_token_s: float | None = None
    total_s: float | None = None
    stats: RequestStats = field(default_factory=RequestStats)

    @property
    def per_token_s(self) -> float | None:
        """Mean time of a token after the first."""
        if self.total_s is None or self.first_token_s is None or self.line.output < 2:
            return None
        return (self.total_s - self.first_token_s) / (self.line.output - 1)


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A trace as it was played."""

    outcomes: Sequence[RehearsedRequest]
    seconds: float
    """From the first arrival to the last end."""
    replayed: Mapping[str, Mapping[str, int]]
    """By proposer: drafts that were recorded where they were made ("exact"), elsewhere ("moved"), or too short to say
    how far they would have gone ("cut")."""
    busy_s: float = 0.0
    """Time in steps of the engine."""

    @property
    def served(self) -> Sequence[RehearsedRequest]:
        return [one for one in self.outcomes if one.error is None]

    @property
    def num_tokens(self) -> int:
        """Of all answers."""
        return sum(one.line.output for one in self.served)

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / max(self.seconds, 1e-9)

    @property
    def tokens_a_pass(self) -> float:
        """Mean over the passes of single requests."""
        return self.num_tokens / max(1, sum(one.stats.num_steps for one in self.served))


def rehearse(trace: Trace, setting: RehearsedServer) -> Rehearsal:
    """Play all requests of a trace to their end."""
    rehearsed = rehearsed_engine(setting.machine, setting.seed)
    play = _Play(trace, setting, rehearsed)
    with asyncio.Runner(loop_factory=VirtualTime) as runner:
        outcomes, seconds = runner.run(play.run())
    replayed = {proposer.name: dict(proposer.counts) for proposer in rehearsed.proposers}
    return Rehearsal(outcomes, seconds, replayed, rehearsed.engine.timings.totals.total)


class _Play:
    """One rehearsal, on its loop."""

    def __init__(self, trace: Trace, setting: RehearsedServer, rehearsed: Rehearsed) -> None:
        self._trace = trace
        self._setting = setting
        self._answers = rehearsed.answers
        self._client = RehearsedClient(rehearsed)

    async def run(self) -> tuple[list[RehearsedRequest], float]:
        loop = asyncio.get_running_loop()
        metrics = AdmissionMetrics(CollectorRegistry())
        self._gate = AdmissionController(self._setting.server, self._client, metrics, clock=loop.time)
        async with running([self._gate]), asyncio.TaskGroup() as tasks:
            asked = []
            slots = asyncio.Semaphore(self._trace.at_once or len(self._trace.lines))
            for number, line in enumerate(self._trace.lines):
                if self._trace.at_once is None:
                    await asyncio.sleep(max(0.0, line.at - loop.time()))
                await slots.acquire()
                asked.append(tasks.create_task(self._ask(number, line, slots)))
        await self._client.close()
        return [task.result() for task in asked], loop.time()

    async def _ask(self, number: int, line: TraceLine, slots: asyncio.Semaphore) -> RehearsedRequest:
        try:
            return await self._served(number, line)
        except (ProlepsisError, RequestRefused) as error:
            return RehearsedRequest(line=line, error=getattr(error, "code", None) or type(error).__name__)
        finally:
            slots.release()

    async def _served(self, number: int, line: TraceLine) -> RehearsedRequest:
        now, decision = asyncio.get_running_loop().time, self._decided(line)
        traced = TracedRequest(
            number=number,
            num_prompt_tokens=line.prompt,
            num_output_tokens=line.output,
            blocks=line.blocks,
            block_size=self._trace.block_size,
            scope=line.scope,
            traffic_class=traffic_class_of(line.facts(), decision.class_rule),
            drafts=line.drafts,
        )
        arrival, first, stats = now(), None, RequestStats()
        with self._gate.admit(_http(line), [traced.request(decision.choice)]) as group:
            async with self._gate.start(group, 0) as request:
                self._answers.begin(traced)
                try:
                    async for event in self._client.generate(request):
                        group.items[0].see(event)
                        if isinstance(event, Tokens) and first is None:
                            first = now() - arrival
                        if isinstance(event, Terminal):
                            stats = event.stats
                finally:
                    self._answers.end(request.request_id)
        return RehearsedRequest(line=line, first_token_s=first, total_s=now() - arrival, stats=stats)

    def _decided(self, line: TraceLine) -> Decision:
        """Return the decision of the policy; its rules neither roll out nor wait for evidence here."""
        requested = SpeculationRequest(self._setting.mode)
        if self._setting.policy is None:
            return decide_alone(requested)
        rule = self._setting.policy.rule_for(line.facts())
        name, terms = (rule.name, rule.terms) if rule else (DEFAULT_RULE, self._setting.policy.default_terms)
        return decide(name, terms, requested)


def _http(line: TraceLine) -> Request:
    """Return the request as sign-in would have let it through."""
    caller = Caller(key_id="", tenant=line.tenant, roles=frozenset({"client"}), tier=line.tier)
    return Request({"type": "http", "path": line.route, "headers": [], "state": {"caller": caller}}, never)
