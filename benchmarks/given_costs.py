"""What does `auto` bring where passes cost what is given? Recorded answers on a clock that only costs move.

Usage: python -m benchmarks.given_costs RUN... [--prompts FILE] [--tokens 64] [--orders 3] [--noise 0.03]

RUN is COSTS:TEMPERATURE:AT_ONCE[:FACTOR]. COSTS names a processor of `ROWS_MS`, or as PREDICTED/REAL two of them, where
a pass does not cost what was profiled; FACTOR is how many times as much as a pass of so many rows costs drafts add to
it (1). The target decodes every prompt once; then its tokens and hidden states are replayed, so that a run takes
seconds, the processor it runs on does not matter, and two ways to decide about drafts can be compared where real times
differ by more than the ways do. Proposers, head, verification and all decisions are the real ones. Told are plain over
`auto` in time, of decoding steps and of all, over orders of the prompts; a pass takes random times around its cost, the
same in each run of the same decisions.
"""

import argparse
import math
import random
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from prolepsis.cli.bench.prompts import encode_prompts, load_prompts
from prolepsis.core.config import EngineConfig
from prolepsis.core.events import Failed, Finished, Tokens
from prolepsis.core.messages import Submit
from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.core.plan import AppliedPlan
from prolepsis.core.requests import GenerateRequest, SamplingParams, SpeculationChoice
from prolepsis.engine.build import assemble
from prolepsis.engine.client import EngineInfo
from prolepsis.engine.hidden_states import HiddenStateRouter
from prolepsis.engine.paging import Paging
from prolepsis.engine.rows import Row, SampledTokens
from prolepsis.engine.runner import Computed
from prolepsis.engine.scheduler import Scheduler, SchedulerLimits
from prolepsis.engine.speculation import Speculation
from prolepsis.engine.step import Engine, EngineParts
from prolepsis.engine.timings import Timings
from prolepsis.engine.verification import Verification
from prolepsis.kv.pages import PagePool
from prolepsis.models.heads.base import DraftHead
from prolepsis.models.heads.registry import head_for
from prolepsis.models.load import LoadedModel, load_model
from prolepsis.sampling.sampler import Sampler
from prolepsis.spec.acceptance import AcceptanceEstimator
from prolepsis.spec.choose import ProposerSet
from prolepsis.spec.cost import CostCurve
from prolepsis.spec.draft import Draft
from prolepsis.spec.payback import Payback
from prolepsis.spec.proposer import Proposer, SequenceView
from prolepsis.spec.proposers.head import HeadProposer
from prolepsis.spec.proposers.head_slots import HeadState
from prolepsis.spec.proposers.head_tree import HeadPass, HeadTree
from prolepsis.spec.proposers.suffix import SuffixProposer
from prolepsis.spec.window import DraftWindow
from prolepsis.telemetry.logs import configure_logs
from prolepsis.train.synthesis import FeatureRecorder, plain

ROWS_MS = {
    "amx": {1: 2.2, 4: 3.1, 5: 3.2, 8: 4.9, 12: 6.4, 16: 8.5, 20: 9.7, 24: 10.8, 32: 12.6},
    "zen5": {1: 2.3, 4: 2.6, 8: 3.1, 16: 4.7},
    "zen4": {1: 2.9, 2: 3.0, 3: 3.2, 4: 3.6, 5: 4.0, 8: 5.7, 9: 6.5, 16: 10.3, 32: 19.8, 64: 37.6},
    "zen4-quiet": {1: 3.8, 2: 3.9, 3: 4.0, 4: 4.05, 5: 4.1, 6: 4.45, 8: 5.5, 12: 6.9, 16: 9.4, 32: 18.0, 64: 35.0},
    "zen3": {1: 6.5, 2: 6.9, 6: 7.4, 8: 9.9, 12: 13.8, 16: 20.5, 24: 28.0},
}
"""Milliseconds of a pass of the default model by rows, at about `CONTEXT` cached tokens, on two cores (docs/log.md).

Of one Zen 4 the pass of one row waits for memory and the others cost less ("quiet") or more, as the hour has it.
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
HEAD_IN_CACHE_MS = {"amx": 0.18}
"""Of a call, where an L3 holds the weights of target and head."""
AFTER_MS, LEARN_MS = 0.1, 0.065
"""By which a pass is slower in a step that looked for drafts, and of what proposers learn of a sequence's step."""
CONFIG = EngineConfig(kv_memory="384MiB")
LENGTH, SEQUENCES, PAGES = 2048, 64, 512
"""Longest sequence, sequences at once and pages of a replay."""


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
    temperature: float
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
            HEAD_IN_CACHE_MS.get(real, HEAD_MS),
            float(temperature),
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


@dataclass(frozen=True, slots=True)
class Recording:
    """What the target says to a prompt, and its hidden states of every token but the last."""

    prompt: tuple[int, ...]
    params: SamplingParams
    tokens: tuple[int, ...]
    features: Tensor  # [tokens computed, aux_layers * hidden] bfloat16


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


def record(
    loaded: LoadedModel, head: DraftHead, prompts: Sequence[tuple[int, ...]], temperature: float, num_tokens: int
) -> list[Recording]:
    recorder = FeatureRecorder(head.info.aux_layers)
    engine = assemble(plain(CONFIG, LENGTH), loaded, consumers=[recorder])
    recordings: list[Recording] = []
    for i, prompt in enumerate(prompts):
        top_p = 0.95 if temperature else 1.0
        params = SamplingParams(temperature=temperature, top_p=top_p, seed=i, max_tokens=num_tokens, ignore_eos=True)
        recorder.watch(f"{i}/0")
        engine.send(Submit(GenerateRequest(str(i), prompt, params), engine.clock()))
        tokens: list[int] = []
        while engine.has_work:
            for event in engine.step():
                tokens += event.token_ids if isinstance(event, Tokens) else ()
        recordings.append(Recording(prompt, params, tuple(tokens), recorder.collect(f"{i}/0")))
    return recordings


def engine_of(runner: Replay, loaded: LoadedModel, head: DraftHead) -> Engine:
    """Return an engine that decides about drafts as a served one does."""
    info, clock, plan = loaded.model.info, runner.clock, AppliedPlan()
    drafter = PricedHead(head, clock, runner.given.head_ms)
    window = DraftWindow(runner.given.predicted, token_overhead_ms=0.01)
    drafters = [SuffixProposer(), Looking(clock), drafter]
    proposers = ProposerSet(drafters, window, AcceptanceEstimator(), info.vocab_size, clock)
    budget = CONFIG.max_step_tokens
    limits = SchedulerLimits(SEQUENCES, budget, LENGTH, info.vocab_size, info.eos_token_ids)
    paging = Paging(PagePool(PAGES, PAGE_SIZE, prefix_cache=False), drafter.copy_page, drafter.clear_page)
    parts = EngineParts(
        info=EngineInfo(info.name, "replay", info.vocab_size, LENGTH, "replay", "strict", "replay", proposers.names),
        plan=plan,
        scheduler=Scheduler(limits, paging, plan),
        speculation=Speculation(
            proposers, max_step_tokens=budget, max_model_len=LENGTH, payback=Payback(), clock=clock
        ),
        runner=runner,
        verifier=Verification(Sampler(info.vocab_size, info.eos_token_ids), max_model_len=LENGTH),
        hidden_states=HiddenStateRouter([drafter]),
    )
    engine = Engine(parts)
    engine.timings = Timings(clock=clock)
    return engine


def replay(engine: Engine, runner: Replay, choice: SpeculationChoice) -> tuple[float, float]:
    """Return the seconds of decoding steps and of all."""
    clock, waiting, num_live, decoding = runner.clock, deque(enumerate(runner.recordings)), 0, 0.0
    while waiting or num_live:
        while waiting and num_live < runner.given.at_once:
            i, recording = waiting.popleft()
            source = GenerateRequest(str(i), recording.prompt, recording.params, speculation=choice)
            engine.send(Submit(source, engine.clock()))
            num_live += 1
        began, events = clock.now, engine.step()
        assert not any(isinstance(event, Failed) for event in events), events
        num_live -= sum(isinstance(event, Finished) for event in events)
        decoding += (clock.now - began) * runner.only_decodes
    return decoding, clock.now


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--orders", type=int, default=3)
    parser.add_argument("--noise", type=float, default=0.03, help="of a pass's time")
    args = parser.parse_args()
    configure_logs("error")
    loaded = load_model(CONFIG)
    head = head_for("auto", loaded)
    assert head is not None, "the default model has a head"
    prompts = [prompt.token_ids for prompt in encode_prompts(load_prompts(args.prompts), loaded.tokenizer)]
    recorded: dict[float, list[Recording]] = {}
    for run in args.runs:
        given = Given.parse(run)
        temperature, ratios = given.temperature, list[tuple[float, float]]()
        if temperature not in recorded:
            recorded[temperature] = record(loaded, head, prompts, temperature, args.tokens)
        for order in range(args.orders):
            recordings = random.Random(order).sample(recorded[temperature], len(prompts))
            seconds: list[tuple[float, float]] = []
            for choice in (SpeculationChoice("off"), SpeculationChoice()):
                clock = Clock(random.Random(order), args.noise)
                runner = Replay(recordings, given, loaded.model.info.vocab_size, clock)
                seconds.append(replay(engine_of(runner, loaded, head), runner, choice))
            plain_s, auto_s = seconds
            ratios.append((plain_s[0] / auto_s[0], plain_s[1] / auto_s[1]))
        shown = [f"{statistics.median(one):.3f}x ({min(one):.3f}-{max(one):.3f})" for one in zip(*ratios, strict=True)]
        print(f"{run:<16} decoding {shown[0]}, all {shown[1]}", flush=True)


if __name__ == "__main__":
    main()
