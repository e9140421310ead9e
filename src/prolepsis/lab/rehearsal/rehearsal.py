"""Plays a trace: real admission, policy and engine, on a virtual clock, with the passes of a machine."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from prometheus_client import CollectorRegistry
from starlette.requests import Request

from prolepsis.control.policy.decision import Decision, SpeculationRequest, decide_alone
from prolepsis.control.policy.model import Policy
from prolepsis.control.web.caller import Caller
from prolepsis.control.web.errors import RequestRefused
from prolepsis.control.web.feature import announce_end, most_kept, running
from prolepsis.core.config import ServerConfig
from prolepsis.core.ended import RequestAbout
from prolepsis.core.errors import ProlepsisError
from prolepsis.core.events import Failed, Tokens
from prolepsis.core.facts import traffic_class_of
from prolepsis.core.kill_scope import request_scopes
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import LatencyTarget, SpecMode
from prolepsis.core.stats import RequestStats
from prolepsis.lab.measure.arrivals import LatencyGoal, arriving
from prolepsis.lab.rehearsal.control import ControlChange, rehearsed_control
from prolepsis.lab.rehearsal.trace import Trace, TraceLine
from prolepsis.lab.virtual_engine.client import RehearsedClient
from prolepsis.lab.virtual_engine.engine import Rehearsed, rehearsed_engine
from prolepsis.lab.virtual_engine.machine import Machine
from prolepsis.lab.virtual_engine.replay import TracedRequest
from prolepsis.lab.virtual_engine.virtual_time import VirtualTime
from prolepsis.server.admission.controller import AdmissionController
from prolepsis.server.admission.group import RequestGroup
from prolepsis.server.admission.metrics import AdmissionMetrics
from prolepsis.server.answering.account import RequestAccount
from prolepsis.server.answering.stream import never
from prolepsis.server.preparing.speculation import check_allowed
from prolepsis.server.text.deltas import Delta


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsedServer:
    """What serves the trace."""

    machine: Machine
    server: ServerConfig = field(default_factory=ServerConfig)
    policy: Policy | None = None
    """It decides together with what decides on a server: rollouts, breakers, flags, eligibility and drift."""
    mode: SpecMode = "auto"
    """What every request asks for: off is the plain baseline, on which no policy decides."""
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsedRequest:
    """What became of a request; times in seconds from its arrival."""

    line: TraceLine
    error: str | None = None  # code of what refused or ended it; its times are None then
    first_token_s: float | None = None
    total_s: float | None = None
    stats: RequestStats = field(default_factory=RequestStats)
    target: LatencyTarget | None = None  # its line's, and its rule's

    def keeps(self, goal: LatencyGoal) -> bool:
        """Return whether it keeps its target, and where it has none, the goal."""
        return goal.of(self.target).is_kept(self.first_token_s, self.per_token_s)

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
    seconds: float  # from the first arrival to the last end
    replayed: Mapping[str, Mapping[str, int]]
    """By proposer: drafts that were recorded where they were made ("exact"), elsewhere ("moved"), or too short to say
    how far they would have gone ("cut")."""
    busy_s: float = 0.0  # time in steps of the engine
    changes: Sequence[ControlChange] = ()  # what changed, in order; nothing without a policy
    not_measured: str | None = None  # which passes of it the machine's file only extrapolates

    @property
    def served(self) -> Sequence[RehearsedRequest]:
        return [outcome for outcome in self.outcomes if outcome.error is None]

    @property
    def num_tokens(self) -> int:
        """Of all answers."""
        return sum(outcome.line.output for outcome in self.served)

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / max(self.seconds, 1e-9)

    @property
    def tokens_a_pass(self) -> float:
        """Mean over the passes of single requests."""
        return self.num_tokens / max(1, sum(outcome.stats.num_steps for outcome in self.served))


def rehearse(trace: Trace, setting: RehearsedServer) -> Rehearsal:
    """Play all requests of a trace to their end."""
    rehearsed = rehearsed_engine(setting.machine, setting.seed)
    play = _Play(trace, setting, rehearsed)
    with asyncio.Runner(loop_factory=VirtualTime) as runner:
        outcomes, seconds = runner.run(play.run())
    replayed = {proposer.name: dict(proposer.counts) for proposer in rehearsed.proposers}
    not_measured = setting.machine.not_measured(*rehearsed.passes.most)
    return Rehearsal(outcomes, seconds, replayed, rehearsed.engine.timings.totals.total, play.changes, not_measured)


class _Play:
    """One rehearsal, on its loop."""

    def __init__(self, trace: Trace, setting: RehearsedServer, rehearsed: Rehearsed) -> None:
        self.changes: list[ControlChange] = []
        self._trace = trace
        self._setting = setting
        self._answers = rehearsed.answers
        self._client = RehearsedClient(rehearsed)

    async def run(self) -> tuple[list[RehearsedRequest], float]:
        loop, setting, client = asyncio.get_running_loop(), self._setting, self._client
        plan = SpecPlan(num_speculative_tokens=setting.machine.engine.num_speculative_tokens)
        policy, metrics = None if setting.mode == "off" else setting.policy, AdmissionMetrics(CollectorRegistry())
        with rehearsed_control(setting.server, policy, client, plan, self.changes) as control:
            self._control, self._features = control, control.features if control else ()
            shed = control.plan.shed if control else None
            self._gate = AdmissionController(setting.server, client, metrics, plan, loop.time, apply_plan=shed)
            async with running([self._gate, *self._features]):
                jobs = ((line.at, partial(self._ask, number, line)) for number, line in enumerate(self._trace.lines))
                outcomes = await arriving(jobs, at_once=self._trace.at_once)
            await client.close()
        return outcomes, loop.time()

    async def _ask(self, number: int, line: TraceLine) -> RehearsedRequest:
        try:
            return await self._served(number, line)
        except (ProlepsisError, RequestRefused) as error:
            return RehearsedRequest(line=line, error=getattr(error, "code", None) or type(error).__name__)

    async def _served(self, number: int, line: TraceLine) -> RehearsedRequest:
        now, decision = asyncio.get_running_loop().time, await self._decided(number, line)
        traced = TracedRequest(
            number=number,
            num_prompt_tokens=line.prompt,
            num_output_tokens=line.output,
            blocks=line.blocks,
            block_size=self._trace.block_size,
            scope=line.scope,
            traffic_class=decision.traffic_class,
            drafts=line.drafts,
        )
        about = RequestAbout(
            answer_id=str(number),
            tenant=line.tenant,
            key_id="",
            tier=line.tier,
            route=line.route,
            model="",
            policy_rule=decision.rule,
            policy_version=decision.policy_version,
            assignment=decision.assignment,
            is_evidence=decision.is_evidence,
            arrived=now(),
        )
        account = RequestAccount(about, whole=False, check=lambda: None, judge=lambda *_: "unjudged", clock=now)
        scopes = request_scopes(line.facts(), traced.traffic_class, decision.rule)
        target = decision.target(line.target)
        request = replace(traced.request(decision.choice), kill_scopes=scopes, target=target)
        with self._gate.admit(_http(line), [request]) as group:
            try:
                await self._answered(group, traced, account)
            except BaseException as error:
                account.fail(error)
                raise
            finally:
                ended = account.ended()
                announce_end(self._features, ended)
        [prompt] = ended.prompts
        first_s = None if prompt.first_token_at is None else prompt.first_token_at - about.arrived
        whole_s = ended.ended_at - about.arrived
        return RehearsedRequest(line=line, first_token_s=first_s, total_s=whole_s, stats=prompt.stats, target=target)

    async def _answered(self, group: RequestGroup, traced: TracedRequest, account: RequestAccount) -> None:
        """Ask the engine as a server does; the client has each part at once."""
        async with self._gate.start(group, 0) as request:
            prompt = account.begin(request, group.items[0])
            self._answers.begin(traced)
            try:
                kept = prompt.keep(most_kept(self._features, account.about, request))
                async for event in self._client.generate(kept):
                    prompt.see(event)
                    if isinstance(event, Tokens):
                        reason, by = event.finish_reason, event.accepted_by
                        delta = Delta(event.index, "", first=False, finish_reason=reason, delivered=by)
                        prompt.sent(await prompt.sending(delta))
                    elif isinstance(event, Failed):
                        raise event.error
            except BaseException as error:
                prompt.fail(error)
                raise
            finally:
                self._answers.end(request.request_id)

    async def _decided(self, number: int, line: TraceLine) -> Decision:
        mode = self._setting.mode
        requested = SpeculationRequest(line.mode if mode == "auto" else mode)
        if self._control is None:
            return replace(decide_alone(requested), traffic_class=traffic_class_of(line.facts()))
        key, time = f"{self._setting.seed}-{number}", self._control.policies.now()
        facts = replace(line.facts(), targeting_key=key, time=time)
        return check_allowed(await self._control.decision(requested, facts))


def _http(line: TraceLine) -> Request:
    """Return the request as sign-in would have let it through."""
    caller = Caller(key_id="", tenant=line.tenant, roles=frozenset({"client"}), tier=line.tier)
    return Request({"type": "http", "path": line.route, "headers": [], "state": {"caller": caller}}, never)
