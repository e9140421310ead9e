"""Puts a rehearsed engine together: the parts of `engine.build` around a replayed pass."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from prolepsis.core.engine_client import EngineInfo
from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.core.plan import AppliedPlan, SpecPlan
from prolepsis.engine.chunks import ChunkLimit
from prolepsis.engine.drafting.acceptance import AcceptanceEstimator
from prolepsis.engine.drafting.call_watch import CallWatch
from prolepsis.engine.drafting.choose import ProposerSet
from prolepsis.engine.drafting.payback import Payback
from prolepsis.engine.drafting.proposer import Proposer
from prolepsis.engine.drafting.window import DraftWindow
from prolepsis.engine.hidden_states import HiddenStateRouter
from prolepsis.engine.kv.pages import PagePool
from prolepsis.engine.paging import Paging
from prolepsis.engine.runner import PassRunner, StepVerifier
from prolepsis.engine.scheduler import Scheduler, SchedulerLimits
from prolepsis.engine.speculation import Speculation
from prolepsis.engine.step import Engine, EngineParts
from prolepsis.lab.virtual_engine.machine import Machine, RehearsedSettings, VirtualClock
from prolepsis.lab.virtual_engine.replay import VOCAB_SIZE, KnownAnswers, KnownRequests, RecordedProposer, TimedPass


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """An engine, what it knows of the requests that it runs, and its clock."""

    engine: Engine
    answers: KnownRequests
    clock: VirtualClock
    proposers: tuple[RecordedProposer, ...]
    passes: TimedPass


def rehearsed_engine(machine: Machine, seed: int = 0) -> Rehearsed:
    """Return an engine of a machine; `seed` draws the scatter of its passes."""
    clock, answers = VirtualClock(), KnownRequests()
    recorded = tuple(RecordedProposer(name, cost, answers, clock) for name, cost in machine.proposers.items())
    passes = TimedPass(machine, clock, random.Random(seed))
    replayed = ReplayedParts(recorded, passes, KnownAnswers(answers))
    return Rehearsed(virtual_engine(machine, clock, replayed), answers, clock, recorded, passes)


@dataclass(frozen=True, slots=True)
class ReplayedParts:
    """The parts of an engine that are not its own in a rehearsal."""

    proposers: Sequence[Proposer]
    runner: PassRunner
    verifier: StepVerifier
    vocab_size: int = VOCAB_SIZE


def virtual_engine(machine: Machine, clock: VirtualClock, replayed: ReplayedParts) -> Engine:
    """Return an engine around the given parts, all of whose times are of `clock`."""
    settings = machine.engine
    window, watch = DraftWindow(machine.expected, token_overhead_ms=0.01), CallWatch(clock=clock)
    drafters = ProposerSet(replayed.proposers, window, AcceptanceEstimator(), replayed.vocab_size, clock, watch=watch)
    plan = AppliedPlan(SpecPlan(num_speculative_tokens=settings.num_speculative_tokens))
    parts = EngineParts(
        info=_info(settings, drafters, replayed.vocab_size),
        scheduler=_scheduler(settings, machine, plan, replayed.vocab_size),
        speculation=Speculation(
            drafters,
            max_step_tokens=settings.max_step_tokens,
            max_model_len=settings.max_model_len,
            shadow_cost=settings.shadow_cost,
            payback=Payback(drafters.explore),
            clock=clock,
        ),
        runner=replayed.runner,
        verifier=replayed.verifier,
        plan=plan,
        hidden_states=HiddenStateRouter([proposer for proposer in replayed.proposers if proposer.aux_layers]),
    )
    engine = Engine(parts, clock)
    engine.timings.clock = clock
    return engine


def _scheduler(settings: RehearsedSettings, machine: Machine, plan: AppliedPlan, vocab_size: int) -> Scheduler:
    limits = SchedulerLimits(settings.max_requests, settings.max_step_tokens, settings.max_model_len, vocab_size)
    pool = PagePool(settings.num_pages, PAGE_SIZE, prefix_cache=settings.prefix_cache)
    paging = Paging(pool, lambda source, target: None, lambda page: None)
    return Scheduler(limits, paging, plan, chunks=ChunkLimit(settings.chunk_limit_ms, machine.expected))


def _info(settings: RehearsedSettings, drafters: ProposerSet, vocab_size: int) -> EngineInfo:
    return EngineInfo(
        model="rehearsed",
        forward="rehearsed",
        vocab_size=vocab_size,
        max_model_len=settings.max_model_len,
        fingerprint="rehearsed",
        exactness="strict",
        exactness_reason="answers are replayed",
        proposers=drafters.names,
    )
