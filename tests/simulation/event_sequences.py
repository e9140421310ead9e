"""Random lives of an engine and of what accounts for it: failures, aborts, empty steps, preemption, odd clocks.

Each sequence of events has an engine of its own; the features of one server (rollouts, cost, drift, breakers, traffic,
health) hear of every request's end. Nothing here may raise, and no finished answer may differ from plain decoding.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx2

from prolepsis.control.cost.prices import PriceFile
from prolepsis.control.rollout.runtime import Rollouts
from prolepsis.core.config import ServerConfig
from prolepsis.core.ended import Assignment, PromptEnded, RequestAbout, RequestEnded
from prolepsis.core.errors import GrammarFailed
from prolepsis.core.events import Event, Failed, Finished, Terminal
from prolepsis.core.messages import Abort, ApplyPlan
from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.core.plan import DisabledProposer, SpecPlan
from prolepsis.core.requests import GenerateRequest, SamplingParams, SpeculationChoice
from prolepsis.core.stats import RequestStats
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.engine.drafting.draft import Draft
from prolepsis.engine.drafting.payback import Payback
from prolepsis.engine.drafting.proposer import SequenceView
from prolepsis.engine.rows import Row, SampledTokens
from prolepsis.engine.runner import Computed
from prolepsis.engine.sampling.noise import noise_key
from prolepsis.engine.speculation import Speculation
from prolepsis.engine.step import Engine
from prolepsis.server.answering.account import classified
from prolepsis.server.status.service_health import ServiceHealth
from tests import fakes
from tests.fake_proposer import Script, Scripted
from tests.server.application import build as build_app
from tests.server.application import feature_of
from tests.server.fakes import ByteTokenizer, FakeEngine

RULE = "all"
POLICY = f"""
rules:
  - name: {RULE}
    match: {{route: /v1/completions}}
    mode: "on"
    shadow_percentage: 50
    rollout: {{stages: [50], holdout: 20, gate: automatic, min_stage_s: 1, max_stage_s: 1000, min_samples: 5}}
    guardrails:
      - {{name: taken, metric: acceptance_rate, limit: 0.1, dry_run: true}}
      - {{name: far, metric: acceptance_length, limit: 1.1, dry_run: true}}
      - {{name: cost, metric: cost_per_token, margin: 0.1, dry_run: true}}
      - {{name: slow, metric: latency_p95_ms, margin: 5, dry_run: true}}
      - {{name: errors, metric: error_rate, margin: 0.5}}
"""
PRICES = "version: 1\ncurrency: EUR\nprices: [{name: a, per_device_hour: 3.6}]\n"
CLASSES = ("chat-completions/standard/free/short", "completions/standard/json/short")
PAGES = ("/console", "/console/proposers", "/console/quality", "/console/dashboards", "/console/rollouts")
ADMIN = ("/admin/traffic", "/admin/cost", "/admin/health", "/admin/rollouts", "/admin/shadow")
RECENT = ("/admin/requests?order=slowest", "/admin/requests?order=least_accepted")
_MOST_STEPS = 400


@dataclass
class FaultyVerifier(fakes.KeyedVerifier):
    """Lets the grammar of a row fail now and then, or in the first step with drafts: such a row emits nothing."""

    random: random.Random
    share: float
    fails_first_draft: bool

    def verify(self, rows: Sequence[Row], computed: Computed) -> list[SampledTokens | None]:
        found, share = super().verify(rows, computed), self.share
        if self.fails_first_draft and any(row.draft is not None for row in rows):
            self.fails_first_draft, share = False, 1.0
        return [
            replace(one, tokens=(), path=(), fault=GrammarFailed("no way on"))
            if one is not None and self.random.random() < share
            else one
            for one in found
        ]


@dataclass
class EventSequence:
    """One engine from its first request to its last."""

    random: random.Random
    plan: SpecPlan
    server: "Server"
    engine: Engine = field(init=False)
    sources: dict[str, GenerateRequest] = field(default_factory=dict)
    assignments: dict[str, Assignment] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    is_calm: bool = field(init=False)
    _passed_s: float = 0.0

    def __post_init__(self) -> None:
        draw = self.random
        self.is_calm = draw.random() < 0.5  # so that steps only decode, whose cost is learned
        verifier = FaultyVerifier(draw, draw.choice([0.0, 0.0, 0.02, 0.1]), draw.random() < 0.3)
        setup = fakes.EngineSetup(
            num_pages=draw.choice([9, 9, 17, 64]),
            num_lendable=4,
            lender="costly",
            max_sequences=draw.choice([1, 2] if self.is_calm else [1, 2, 4, 8]),
            max_step_tokens=draw.choice([9, 24, 64]),
            prefix_cache=draw.random() < 0.5,
            proposers=[Scripted(self._script(name), name, free=name != "costly") for name in self._names()],
            verifier=verifier,
            observer=self.server.metrics,
        )
        self.engine = fakes.build(setup)
        proposers = self.engine.speculation.proposers
        self.engine.speculation = Speculation(
            proposers,
            max_step_tokens=setup.max_step_tokens,
            max_model_len=256,
            payback=self.server.payback,
            clock=self._clock,
        )
        self.engine.timings.clock = self._clock
        self.engine.send(ApplyPlan(self.plan))

    def _names(self) -> list[str]:
        return [name for name in ("scripted", "other", "costly") if self.random.random() < 0.7]

    def _clock(self) -> float:
        """Return a time that stands still, or leaps."""
        self._passed_s += self.random.choice([0.0, 0.0, 1e-9, 1e-4, 0.003, 0.5])
        return self._passed_s

    def _draft(self, sequence: SequenceView, limit: int) -> Draft | None:
        chance = self.random.random()
        if chance < 0.05:
            raise ValueError("no idea")
        if chance < 0.2:
            return None
        return fakes.draft_chain(sequence, min(limit, self.random.randint(1, 4)), wrong_from=self.random.randint(0, 4))

    def _script(self, name: str) -> Script:
        """Return what a proposer drafts with; that of "costly" writes to the pages that it lends."""
        return self._draft_in_lendable if name == "costly" else self._draft

    def _draft_in_lendable(self, sequence: SequenceView, limit: int) -> Draft | None:
        cache, first = self.engine.runner.cache, self.engine.scheduler.pool.num_pages * PAGE_SIZE  # type: ignore[attr-defined]
        cache.slots[first:] = [(-3, -3)] * (len(cache.slots) - first)
        draft = self._draft(sequence, limit)
        return draft and replace(draft, proposer="costly")

    def live(self) -> None:
        """Live to the end; raises where a step takes no end."""
        left = self.random.randint(1, 8)
        for _ in range(_MOST_STEPS):
            while left and self.random.random() < 0.4:
                left -= 1
                self._submit()
            if not left and not self.engine.has_work:
                return
            self._disturb()
            self.events += self.engine.step()
            self.server.num_lent += self.engine.scheduler.pool.num_lent > 0
            self.engine.scheduler.check()
        raise AssertionError("the engine takes no end")

    def _submit(self) -> None:
        draw, name = self.random, f"r{len(self.sources)}"
        choice = SpeculationChoice("auto" if self.is_calm else draw.choice(["auto", "auto", "always", "off", "shadow"]))
        if not self.is_calm and draw.random() < 0.5:
            assignment = self.assignments[name] = self.server.rollouts.assign(RULE, f"{draw.random()}")
            choice = SpeculationChoice(
                "auto" if assignment.mode == "on" else assignment.mode, rollout_run=assignment.rollout_run
            )
        params = SamplingParams(
            temperature=draw.choice([0.0, 1.0]),
            seed=draw.randint(0, 99),
            max_tokens=draw.choice([1, 5, 12, 40]),
            ignore_eos=draw.random() < 0.5,
        )
        source = GenerateRequest(
            name,
            tuple(draw.randint(1, 9) for _ in range(draw.choice([1] if self.is_calm else [1, 20, 120, 120]))),
            params,
            n=1 if self.is_calm else draw.choice([1, 1, 1, 3]),
            traffic_class=draw.choice(CLASSES),
            deadline_s=draw.choice([*[None] * 9, 1e-9]),
            speculation=choice,
            keeps_rounds=True,
        )
        self.sources[name] = source
        fakes.submit(self.engine, source)

    def _disturb(self) -> None:
        draw, engine = self.random, self.engine
        chance = draw.random()
        if chance < 0.03 and self.sources:
            engine.send(Abort(draw.choice(list(self.sources))))
        elif chance < 0.05:
            engine.runner.model.fail_next = 1  # type: ignore[attr-defined]
        elif chance < 0.08:
            plans = (SpecPlan(num_speculative_tokens=0), SpecPlan(fixed_depth=2), self.plan)
            engine.send(ApplyPlan(draw.choice(plans)))
        elif chance < 0.1:
            left_out = DisabledProposer("scripted", CLASSES[0], draw.randint(0, 2), draw.randint(0, 3))
            engine.send(ApplyPlan(SpecPlan(disabled=(left_out,))))
        elif chance < 0.12 and "costly" in engine.speculation.proposers.names:
            engine.speculation.proposers.exchange("costly", Scripted(self._draft, "costly", free=False))
            engine.speculation.exchanged("costly")

    def check(self) -> None:
        """Assert that each request ended once, with the tokens of plain decoding, and that nothing was contained."""
        ends, outputs = fakes.terminals(self.events), fakes.outputs(self.events)
        assert ends.keys() == self.sources.keys()
        assert not any(self.engine.contained.num_faults.values()), self.engine.contained.num_faults
        for name, end in ends.items():
            assert all(seconds >= 0.0 for seconds in end.stats.device.by_kind().values())
            for index in range(self.sources[name].n):
                plain = fakes.reference(self.sources[name], noise_key(self.sources[name].params.seed, index))
                found = outputs.get((name, index), [])
                assert found == (plain if isinstance(end, Finished) else plain[: len(found)])


class Server:
    """The features of one server, which outlive the engines."""

    def __init__(self, folder: Path) -> None:
        (folder / "policy.yaml").write_text(POLICY)
        (folder / "prices.yaml").write_text(PRICES)
        self.metrics, self.client = Metrics(), FakeEngine()
        self.payback = Payback()
        config = ServerConfig(controls_file=folder / "controls.json", replay_sample=0.0)
        policy, prices = folder / "policy.yaml", PriceFile(folder / "prices.yaml")
        self.app = build_app(config, self.client, ByteTokenizer(), self.metrics, policy=policy, prices=prices)
        self.rollouts = feature_of(self.app, Rollouts)
        self.http = httpx2.AsyncClient(transport=httpx2.ASGITransport(self.app), base_url="http://localhost")
        self.num_lent = 0  # steps in which pages were lent
        self.ends: Counter[str] = Counter()
        """Requests by the code of their error; empty: they finished."""
        [self.health] = [one for one in self.app.state.features if isinstance(one, ServiceHealth)]

    async def begin(self) -> None:
        await self.tick()

    async def tick(self) -> None:
        for feature in self.app.state.features:
            await feature.tick()

    async def live(self, seed: int) -> None:
        """Live one sequence of events, and take in all that ended in it; raises what any part of it raises.

        What pays is learned over some sequences, and then from nothing again.
        """
        draw = random.Random(seed)
        if draw.random() < 0.2:
            self.payback.start_over()
        plan = self.client.plans[-1] if self.client.plans else SpecPlan()
        sequence = EventSequence(draw, plan, self)
        sequence.live()
        sequence.check()
        self.client.counts = sequence.engine.speculation.proposers.ledger.counts()
        for end in fakes.terminals(sequence.events).values():
            ended = _ended(sequence, end)
            self.ends[ended.error or ""] += 1
            for feature in self.app.state.features:
                feature.on_request_end(ended)
        if seed % 16 == 0:
            await self.tick()

    async def look(self) -> None:
        """Read every figure as an operator does."""
        for path in (*ADMIN, *PAGES, *RECENT, "/metrics"):
            reply = await self.http.get(path, follow_redirects=True)
            assert reply.status_code in (200, 404), f"{path}: {reply.text[:300]}"


def _ended(sequence: EventSequence, end: Terminal) -> RequestEnded:
    """Return what the server tells of a request whose terminal event is `end`."""
    source, assignment = sequence.sources[end.request_id], sequence.assignments.get(end.request_id)
    kind, error = ("aborted", None) if not isinstance(end, Finished | Failed) else ("finished", None)
    if isinstance(end, Failed):
        kind, error = classified(end.error)
    stats: RequestStats = end.stats
    prompt = PromptEnded(
        request=source,
        end=kind,  # type: ignore[arg-type]
        error=error,
        stats=stats,
        num_shown_tokens=None,
        answer="complete" if isinstance(end, Finished) else "cut",
        tokens=(),
        finish_reasons=("stop",) * source.n if isinstance(end, Finished) else (),
        delivery={},
    )
    about = RequestAbout(
        answer_id=end.request_id,
        tenant=sequence.random.choice(["", "a"]),
        key_id="",
        tier="standard",
        route="/v1/completions",
        model="tiny",
        policy_rule=RULE if assignment else None,
        assignment=assignment,
        is_evidence=assignment is not None,
    )
    return RequestEnded(about=about, end=kind, error=error, prompts=(prompt,))  # type: ignore[arg-type]


async def lives(folder: Path, seeds: Sequence[int]) -> Server:
    """Live all sequences on one server; return it."""
    server = Server(folder)
    await server.begin()
    for seed in seeds:
        await server.live(seed)
        if seed % 256 == 0:
            await asyncio.sleep(0)
    await server.tick()
    await server.look()
    return server
