"""What does `auto` bring where passes cost what is given? Recorded answers on a clock that only costs move.

Usage: python -m benchmarks.given_costs RUN... [--model NAME] [--prompts FILE] [--categories NAME...] [--tokens 64]
    [--orders 3] [--noise 0.03] [--regret] [--recorded FILE] [--json FILE]

RUN is COSTS:TEMPERATURE:AT_ONCE[:FACTOR]. COSTS names a processor or model of `ROWS_MS`, or as PREDICTED/REAL two of
them, where a pass does not cost what was profiled; FACTOR is how many times as much as a pass of so many rows costs
drafts add to it (1). TEMPERATURE `mix`: of the requests at once one repeats what it said, and the others say tokens at
random. The target decodes every prompt once; then its tokens and hidden states are replayed, so that a run takes
seconds, the processor it runs on does not matter, and two ways to decide about drafts can be compared where real times
differ by more than the ways do. Proposers, head, verification and all decisions are the real ones. The result is plain
over `auto` in time, of decoding steps and of all, over orders of the prompts; a pass takes random times around its
cost, the same in each run of the same decisions. `--recorded` keeps the answers for the next call. `--regret` also
prints how much longer `auto` takes than the best of `FIXED` depths, and than a window that knows which nodes of the
drafts at hand are accepted, in time of decoding steps.
"""

import math
import random
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.recorded_answers import LENGTH, Recorder, Recording, mixed
from benchmarks.script import keep, options
from prolepsis.core.config import EngineConfig
from prolepsis.core.engine_client import EngineInfo
from prolepsis.core.events import Failed, Finished
from prolepsis.core.messages import Submit
from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.core.plan import AppliedPlan, SpecPlan
from prolepsis.core.requests import GenerateRequest, SpeculationChoice
from prolepsis.core.telemetry.logs import configure_logs
from prolepsis.engine.drafting.acceptance import AcceptanceEstimator
from prolepsis.engine.drafting.candidate import DraftCandidate
from prolepsis.engine.drafting.choose import ProposerSet
from prolepsis.engine.drafting.cost import CostCurve
from prolepsis.engine.drafting.draft import Draft
from prolepsis.engine.drafting.payback import Payback
from prolepsis.engine.drafting.proposer import Proposer, SequenceView
from prolepsis.engine.drafting.proposers.head import HeadProposer
from prolepsis.engine.drafting.proposers.head_slots import HeadState
from prolepsis.engine.drafting.proposers.head_tree import HeadPass, HeadTree
from prolepsis.engine.drafting.proposers.suffix import SuffixProposer
from prolepsis.engine.drafting.window import DraftWindow, StepLoad
from prolepsis.engine.hidden_states import HiddenStateRouter
from prolepsis.engine.kv.pages import PagePool
from prolepsis.engine.models.heads.base import DraftHead
from prolepsis.engine.models.heads.registry import head_for
from prolepsis.engine.models.load import LoadedModel, load_model
from prolepsis.engine.paging import Paging
from prolepsis.engine.rows import Row, SampledTokens
from prolepsis.engine.runner import Computed
from prolepsis.engine.sampling.sampler import Sampler
from prolepsis.engine.scheduler import Scheduler, SchedulerLimits
from prolepsis.engine.speculation import Speculation
from prolepsis.engine.step import Engine, EngineParts
from prolepsis.engine.timings import Timings
from prolepsis.engine.verification import Verification
from prolepsis.lab.measure.prompts import encode_prompts, load_prompts

ROWS_MS = {
    "amx": {1: 2.2, 4: 3.1, 5: 3.2, 8: 4.9, 12: 6.4, 16: 8.5, 20: 9.7, 24: 10.8, 32: 12.6},
    "zen5": {1: 2.3, 4: 2.6, 8: 3.1, 16: 4.7},
    "zen4": {1: 2.9, 2: 3.0, 3: 3.2, 4: 3.6, 5: 4.0, 8: 5.7, 9: 6.5, 16: 10.3, 32: 19.8, 64: 37.6},
    "zen4-quiet": {1: 3.8, 2: 3.9, 3: 4.0, 4: 4.05, 5: 4.1, 6: 4.45, 8: 5.5, 12: 6.9, 16: 9.4, 32: 18.0, 64: 35.0},
    "zen3": {1: 6.5, 2: 6.9, 6: 7.4, 8: 9.9, 12: 13.8, 16: 20.5, 24: 28.0},
    "twin-half": {1: 12.0, 4: 14.0, 8: 21.0, 16: 31.0},
    "coder-zen4": {1: 30.1, 5: 31.0, 8: 50.3, 16: 91.0, 32: 172.9, 64: 341.0},
    "coder": {1: 37.0, 4: 43.0, 8: 63.0, 16: 94.0},
    "twin-3": {1: 74.0, 4: 86.0, 8: 126.0, 16: 188.0},
}
"""Milliseconds of a pass of the default model by rows, at about `CONTEXT` cached tokens, on two cores (docs/log.md).

Of one Zen 4 the pass of one row waits for memory and the others cost less ("quiet") or more, as the hour has it.
A coder model of 1.5 billion parameters on AMX, and twins of a third and of twice its weights: models that compute the
function of the recorded one at these costs, so that its answers and its head stand.
"""
CONTEXT, CONTEXT_MS = 256, 0.5
"""And of each further 1,000 cached tokens, about as on a Zen 4."""
STEP_MS, ROW_MS = 0.2, 0.02
"""Of a step outside its pass, and of each sequence in it; these and the next on a Zen 4."""
LOOK_MS, LOOK_SEQUENCE_MS = 0.17, 0.02
"""Of looking for drafts without a head."""
HEAD_MS, HEAD_SEQUENCE_MS, HEAD_TOKEN_MS = 0.75, 0.02, 0.006
"""Of a call of the head, of each of its sequences, and of each token that it reads for the first time: between passes,
where its weights and the code around it come from memory. Called again and again it takes 0.25 ms."""
OTHER_HEAD_MS = {"amx": 0.18, "coder-zen4": 2.0, "twin-half": 0.75, "coder": 2.0, "twin-3": 3.0}
"""Of a call, where an L3 holds the weights of target and head, and of the heads of larger models."""
AFTER_MS, LEARN_MS = 0.1, 0.065
"""By which a pass is slower in a step that looked for drafts, and of what proposers learn of a sequence's step."""
CONFIG = EngineConfig(kv_memory="384MiB")
AUTO = SpeculationChoice()
FIXED = (1, 2, 3, 4, 6, 8, 12, 16)
SEQUENCES, PAGES = 64, 512
"""Sequences at once and pages of a replay."""


def curve(costs: str) -> CostCurve:
    rows = ROWS_MS[costs]
    contexts = (64, 512, 2048, 8192)
    return CostCurve(
        tuple(rows),
        contexts,
        [[ms + CONTEXT_MS * (context - CONTEXT) / 1000 for context in contexts] for ms in rows.values()],
    )


@dataclass(frozen=True, slots=True)
class Given:
    """A run: what passes are predicted to cost and what they cost, how many times as much drafts add, the requests."""

    predicted: CostCurve
    costs: CostCurve
    head_ms: float
    temperature: float | None
    """None: a mix."""
    at_once: int
    factor: float

    @classmethod
    def parse(cls, run: str) -> "Given":
        name, temperature, at_once, *factor = run.split(":")
        predicted, _, real = name.partition("/")
        real = real or predicted
        for one in (predicted, real):
            if one not in ROWS_MS:
                raise SystemExit(f"{run}: costs of {one!r}; allowed: {', '.join(ROWS_MS)}")
        return cls(
            curve(predicted),
            curve(real),
            OTHER_HEAD_MS.get(real, HEAD_MS),
            None if temperature == "mix" else float(temperature),
            int(at_once),
            float(factor[0]) if factor else 1.0,
        )


@dataclass
class Clock:
    """Seconds of given costs."""

    chance: random.Random
    noise: float
    now: float = 0.0
    drift: float = 0.0
    """Of the machine's speed: a logarithm."""
    has_looked: bool = False
    """Drafts were looked for in this step."""

    def __call__(self) -> float:
        return self.now

    def spend(self, ms: float, *, exactly: bool = False) -> None:
        if exactly:
            self.now += ms / 1000.0
            return
        self.drift = 0.98 * self.drift + 0.2 * self.noise * self.chance.gauss(0.0, 1.0)
        self.now += ms / 1000.0 * math.exp(self.drift + self.noise * self.chance.gauss(0.0, 1.0))


class Looking(Proposer):
    """Has no drafts; it takes the time of those that look for some, and of learning."""

    name = "looking"
    free = True

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def propose(self, sequences: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft | None]:
        self._clock.spend(LOOK_MS + LOOK_SEQUENCE_MS * len(sequences))
        self._clock.has_looked = True
        return [None] * len(limits)

    def commit(self, sequence: SequenceView, num_new: int) -> None:
        self._clock.spend(LEARN_MS)


class PricedHead(HeadProposer):
    """A head whose calls cost what is given."""

    def __init__(self, head: DraftHead, clock: Clock, call_ms: float) -> None:
        super().__init__(head, num_pages=PAGES, max_sequences=SEQUENCES)
        self._clock = clock
        self._call_ms = call_ms

    def _unwritten(self, trees: Sequence[HeadTree], states: Sequence[HeadState]) -> HeadPass:
        found = super()._unwritten(trees, states)
        num_read = len(found.features) - len(trees)
        self._clock.spend(self._call_ms + HEAD_SEQUENCE_MS * len(trees) + HEAD_TOKEN_MS * num_read)
        return found


@dataclass
class Replay:
    """Runs passes by returning what was recorded, at given costs."""

    recordings: Sequence[Recording]
    """A request is named by its place among them."""
    given: Given
    vocab_size: int
    clock: Clock
    only_decodes: bool = False
    """Whether the last pass computed no prompt."""

    def forward(self, rows: Sequence[Row], aux_layers: tuple[int, ...] = ()) -> Computed:
        nexts: list[int] = []
        features: list[Tensor] = []
        for row in rows:
            sequence, end = row.sequence, row.start + row.num_tokens
            recording = self.recordings[int(sequence.request.request_id)]
            answer = [*recording.prompt, *recording.tokens]
            depths = row.draft.depths() if row.draft else ()
            places = [*range(row.start, end), *(min(end + depth - 1, len(recording.features) - 1) for depth in depths)]
            features.append(recording.features[places])
            if row.samples_next:
                nexts += [answer[min(end + depth, len(answer) - 1)] for depth in (0, *depths)]
        logits = torch.full((len(nexts), self.vocab_size), -1e4)
        logits[range(len(nexts)), nexts] = 0.0
        cost, context = self.given.costs, sum(row.start for row in rows)
        plain_ms = cost.ms(sum(row.num_tokens for row in rows), context)
        added_ms = cost.ms(sum(row.num_scheduled_tokens for row in rows), context) - plain_ms
        self.only_decodes = all(row.num_tokens == 1 for row in rows)
        ms = plain_ms + self.given.factor * added_ms + AFTER_MS * self.clock.has_looked
        self.clock.spend(ms, exactly=not self.only_decodes)  # prompts are long: chance would hide the rest
        self.clock.spend(STEP_MS + ROW_MS * len(rows))
        self.clock.has_looked = False
        return Computed(logits, torch.cat(features) if aux_layers else None, nexts)

    def compact(self, rows: Sequence[Row], sampled: Sequence[SampledTokens | None]) -> None:
        """Nothing was written."""


class Hindsight(ProposerSet):
    """Knows which nodes of the drafts at hand are accepted; what is drafted is decided as ever."""

    answers: Sequence[Sequence[int]] = ()

    def _cut(self, candidates: Sequence[DraftCandidate], load: StepLoad, spent_ms: float) -> list[Draft | None]:
        for candidate in candidates:
            if (best := candidate.best) is not None:
                request, _, _ = candidate.sequence.key.partition("/")
                answer = self.answers[int(request)][len(candidate.sequence.tokens) :]
                alive = list[float]()
                for token, parent, depth in zip(
                    best.draft.tokens, best.draft.parents, best.draft.depths(), strict=True
                ):
                    is_right = depth <= len(answer) and answer[depth - 1] == token
                    alive.append(float(is_right and (parent < 0 or alive[parent] > 0.0)))
                candidate.best = replace(best, survivals=tuple(alive))
        return super()._cut(candidates, load, spent_ms)


def engine_of(
    runner: Replay, loaded: LoadedModel, head: DraftHead | None, fixed: int | None = None, *, knows: bool = False
) -> Engine:
    """Return an engine that decides about drafts as a served one does, drafts `fixed` deep, or knows the answers."""
    info, clock = loaded.model.info, runner.clock
    plan = AppliedPlan(SpecPlan() if fixed is None else SpecPlan(num_speculative_tokens=fixed, fixed_depth=fixed))
    drafters: list[Proposer] = [SuffixProposer(), Looking(clock)]
    heads = [PricedHead(head, clock, runner.given.head_ms)] if head is not None else []
    window = DraftWindow(runner.given.predicted, token_overhead_ms=0.01)
    kind = Hindsight if knows else ProposerSet
    proposers = kind([*drafters, *heads], window, AcceptanceEstimator(), info.vocab_size, clock)
    if isinstance(proposers, Hindsight):
        proposers.answers = [[*each.prompt, *each.tokens] for each in runner.recordings]
    budget = CONFIG.max_step_tokens
    limits = SchedulerLimits(SEQUENCES, budget, LENGTH, info.vocab_size, info.eos_token_ids)
    pool = PagePool(PAGES, PAGE_SIZE, prefix_cache=False)
    paging = Paging(pool, heads[0].copy_page, heads[0].clear_page) if heads else Paging(pool, _no_copy, _no_clear)
    parts = EngineParts(
        info=EngineInfo(info.name, "replay", info.vocab_size, LENGTH, "replay", "strict", "replay", proposers.names),
        plan=plan,
        scheduler=Scheduler(limits, paging, plan),
        speculation=Speculation(
            proposers, max_step_tokens=budget, max_model_len=LENGTH, payback=Payback(proposers.explore), clock=clock
        ),
        runner=runner,
        verifier=Verification(Sampler(info.vocab_size, info.eos_token_ids), max_model_len=LENGTH),
        hidden_states=HiddenStateRouter(heads),
    )
    engine = Engine(parts)
    engine.timings = Timings(clock=clock)
    return engine


def _no_copy(source: int, target: int) -> None:
    """No pages are kept."""


def _no_clear(page: int) -> None:
    """No pages are kept."""


@dataclass(frozen=True, slots=True)
class Seconds:
    """Time of a replay."""

    decoding: float
    """Of steps that computed no prompt."""
    all: float


def replay(engine: Engine, runner: Replay, choice: SpeculationChoice) -> Seconds:
    """Serve all recordings, as many at once as the run says, each lane's one after another."""
    clock, at_once, decoding = runner.clock, runner.given.at_once, 0.0
    is_mix = runner.given.temperature is None
    waiting = [deque[int]() for _ in range(at_once if is_mix else 1)]
    for i, recording in enumerate(runner.recordings):
        waiting[recording.lane].append(i)
    free = list(range(at_once)) if is_mix else [0] * at_once  # lane of each place
    while any(waiting) or len(free) < at_once:
        for lane in [lane for lane in free if waiting[lane]]:
            if waiting[lane]:
                i = waiting[lane].popleft()
                recording = runner.recordings[i]
                source = GenerateRequest(str(i), recording.prompt, recording.params, speculation=choice)
                engine.send(Submit(source, engine.clock()))
                free.remove(lane)
        began, events = clock.now, engine.step()
        assert not any(isinstance(event, Failed) for event in events), events
        ended = [int(event.request_id) for event in events if isinstance(event, Finished)]
        free += [runner.recordings[i].lane for i in ended]
        decoding += (clock.now - began) * runner.only_decodes
    return Seconds(decoding, clock.now)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Ways to decide about drafts at given costs, over the same recordings."""

    given: Given
    recorded: Sequence[Recording]
    loaded: LoadedModel
    head: DraftHead | None
    noise: float

    def ratios(self, order: int) -> Seconds:
        """Return plain over `auto` in time, for one order of the recordings."""
        plain, auto = self._seconds(order, SpeculationChoice("off")), self._seconds(order)
        return Seconds(plain.decoding / auto.decoding, plain.all / auto.all)

    def regret(self, order: int) -> tuple[float, int, float]:
        """Return the time of `auto` over that of the best fixed depth, less 1; that depth; the same of hindsight."""
        auto, knowing = self._seconds(order).decoding, self._seconds(order, knows=True).decoding
        fixed = {depth: self._seconds(order, fixed=depth).decoding for depth in FIXED}
        best = min(fixed, key=fixed.__getitem__)
        return auto / fixed[best] - 1.0, best, auto / knowing - 1.0

    def _seconds(
        self, order: int, choice: SpeculationChoice = AUTO, *, fixed: int | None = None, knows: bool = False
    ) -> Seconds:
        chance = random.Random(order)
        recordings = chance.sample(self.recorded, len(self.recorded))
        if self.given.temperature is None:
            recordings = mixed(recordings, self.given.at_once, chance)
        clock = Clock(random.Random(order), self.noise)
        runner = Replay(recordings, self.given, self.loaded.model.info.vocab_size, clock)
        return replay(engine_of(runner, self.loaded, self.head, fixed, knows=knows), runner, choice)


def main() -> None:
    args = options(
        __doc__,
        "runs+",
        model=CONFIG.model,
        prompts=Path,
        categories=(),
        tokens=64,
        orders=3,
        noise=0.03,
        regret=False,
        recorded=Path,
    )
    configure_logs("error")
    config = CONFIG.model_copy(update={"model": args.model})
    loaded = load_model(config)
    head = head_for("auto", loaded)
    encoded = encode_prompts(load_prompts(args.prompts, args.categories), loaded.tokenizer)
    prompts = [each.token_ids for each in encoded]
    aux_layers = head.info.aux_layers if head is not None else ()
    recorder = Recorder(config, loaded, aux_layers, prompts, num_tokens=args.tokens, file=args.recorded)
    results: dict[str, list[Seconds]] = {}
    regrets: dict[str, list[tuple[float, int, float]]] = {}
    for run in args.runs:
        given = Given.parse(run)
        recorded = recorder.answers(given.temperature or 0.0)
        compared = Comparison(given, recorded, loaded, head, args.noise)
        found = results[run] = [compared.ratios(order) for order in range(args.orders)]
        print(
            f"{run:<16} decoding {_shown([e.decoding for e in found])}, all {_shown([e.all for e in found])}",
            flush=True,
        )
        if args.regret:
            of = [compared.regret(order) for order in range(args.orders)]
            regrets[run] = of
            depths, middle = {depth for _, depth, _ in of}, [statistics.median(each[i] for each in of) for i in (0, 2)]
            print(f"{'':<16} regret {middle[0]:+.1%} of depth {depths}, {middle[1]:+.1%} of hindsight", flush=True)
    keep(
        args,
        regret=regrets,
        ratios={run: [[each.decoding, each.all] for each in found] for run, found in results.items()},
    )


def _shown(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3f}x ({min(values):.3f}-{max(values):.3f})"


if __name__ == "__main__":
    main()
