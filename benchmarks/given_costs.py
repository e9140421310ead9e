"""What does `auto` bring where passes cost what is given? Recorded answers on a clock that only costs move.

Usage: python -m benchmarks.given_costs RUN... [--prompts FILE] [--tokens 64] [--orders 3] [--noise 0.03]

RUN is COSTS:TEMPERATURE:AT_ONCE[:FACTOR]. COSTS names a processor of `ROWS_MS`; FACTOR is how many times as much as it
is predicted to cost drafts really add to a pass (1). The target decodes every prompt once; then its tokens and hidden
states are replayed, so that a run takes seconds, the processor it runs on does not matter, and two ways to decide about
drafts can be compared where real times differ by more than the ways do. Proposers, head, verification and all decisions
are the real ones. Told are plain over `auto` in time, of decoding steps and of all, over orders of the prompts; a pass
takes random times around its cost, the same in each run of the same decisions.
"""

import argparse
import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from prolepsis.cli.bench.prompts import encode_prompts, load_prompts
from prolepsis.core.config import EngineConfig
from prolepsis.core.events import Failed, Finished, Tokens
from prolepsis.core.messages import Submit
from prolepsis.core.requests import GenerateRequest, SamplingParams, SpeculationChoice
from prolepsis.engine.build import FREE_PROPOSERS, assemble
from prolepsis.engine.rows import Row, SampledTokens
from prolepsis.engine.runner import Computed
from prolepsis.engine.step import Engine
from prolepsis.models.heads.base import (
    Candidates,
    DraftTree,
    HeadInfo,
    Lookahead,
    TreeHead,
    TreeParams,
    TreeSpec,
)
from prolepsis.models.heads.registry import head_for
from prolepsis.models.load import LoadedModel, load_model
from prolepsis.models.protocol import Batch, KVCache
from prolepsis.spec.cost import CostCurve
from prolepsis.spec.draft import Draft
from prolepsis.spec.proposer import HiddenStates, Proposer, SequenceView
from prolepsis.telemetry.logs import configure_logs

ROWS_MS = {
    "amx": {1: 2.2, 4: 3.1, 5: 3.2, 8: 4.9, 12: 6.4, 16: 8.5, 20: 9.7, 24: 10.8, 32: 12.6},
    "zen5": {1: 2.3, 4: 2.6, 8: 3.1, 16: 4.7},
    "zen4": {1: 2.9, 2: 3.0, 3: 3.2, 4: 3.6, 5: 4.0, 8: 5.7, 9: 6.5, 16: 10.3, 32: 19.8, 64: 37.6},
    "zen3": {1: 6.5, 2: 6.9, 6: 7.4, 8: 9.9, 12: 13.8, 16: 20.5, 24: 28.0},
}
"""Milliseconds of a pass of the default model by rows, at about `CONTEXT` cached tokens, on two cores (docs/log.md)."""
CONTEXT, CONTEXT_MS = 256, 0.5
"""And of each further 1,000 cached tokens, about as on a Zen 4."""
STEP_MS, ROW_MS = 0.2, 0.02
"""Of a step outside its pass, and of each sequence in it; these and the next on a Zen 4."""
LOOK_MS, LOOK_SEQUENCE_MS = 0.17, 0.02
"""Of looking for drafts without a head."""
HEAD_MS, HEAD_SEQUENCE_MS, HEAD_TOKEN_MS = 0.11, 0.02, 0.006
"""Of a call of the head, of each of its sequences, and of each token that it reads for the first time."""
AFTER_MS, LEARN_MS = 0.1, 0.065
"""By which a pass is slower in a step that looked for drafts, and of what proposers learn of a sequence's step."""
CONFIG = EngineConfig(max_model_len=2048, kv_memory="384MiB", prefix_cache=False, proposers=("suffix", "client"))


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
    """A run: what passes cost, how many times as much as predicted drafts add to them, and the requests."""

    costs: CostCurve
    temperature: float
    at_once: int
    factor: float

    @classmethod
    def parse(cls, run: str) -> "Given":
        name, temperature, at_once, *factor = run.split(":")
        if name not in ROWS_MS:
            raise SystemExit(f"{run}: costs of {name!r}; allowed: {', '.join(ROWS_MS)}")
        return cls(curve(name), float(temperature), int(at_once), float(factor[0]) if factor else 1.0)


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

    name = "client"
    free = True

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def propose(self, sequences: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft | None]:
        self._clock.spend(LOOK_MS + LOOK_SEQUENCE_MS * len(sequences))
        self._clock.has_looked = True
        return [None] * len(limits)

    def commit(self, sequence: SequenceView, num_new: int) -> None:
        self._clock.spend(LEARN_MS)


class PricedHead:
    """A head whose calls cost what is given."""

    def __init__(self, head: TreeHead, clock: Clock) -> None:
        self._head = head
        self._clock = clock

    @property
    def info(self) -> HeadInfo:
        return self._head.info

    def make_cache(self, num_pages: int) -> KVCache:
        return self._head.make_cache(num_pages)

    def committed(self, batch: Batch, cache: KVCache, features: Tensor, count: int) -> Candidates:
        return self._head.committed(batch, cache, features, count)

    def drafted(self, batch: Batch, cache: KVCache, states: Tensor, count: int) -> Candidates:
        return self._head.drafted(batch, cache, states, count)

    def look_ahead(self, batch: Batch, cache: KVCache, features: Tensor, count: int) -> Lookahead:
        return self._head.look_ahead(batch, cache, features, count)

    def follow(
        self, lookahead: Lookahead, places: Sequence[int], tokens: Sequence[int], count: int
    ) -> tuple[Tensor, Tensor]:
        return self._head.follow(lookahead, places, tokens, count)

    def trees(
        self, batch: Batch, cache: KVCache, features: Tensor, tree_params: TreeParams, specs: Sequence[TreeSpec]
    ) -> list[DraftTree]:
        self._clock.spend(HEAD_MS + HEAD_SEQUENCE_MS * len(specs) + HEAD_TOKEN_MS * (len(features) - len(specs)))
        return self._head.trees(batch, cache, features, tree_params, specs)


@dataclass
class Recording:
    """What the target says to a prompt, and its hidden states of every token but the last."""

    prompt: tuple[int, ...]
    params: SamplingParams
    tokens: list[int] = field(default_factory=list)
    parts: list[Tensor] = field(default_factory=list)
    features: Tensor = field(default_factory=lambda: torch.empty(0))


class Recorder:
    """Takes the hidden states of the one sequence that is decoded."""

    def __init__(self, aux_layers: Sequence[int]) -> None:
        self.aux_layers = aux_layers
        self.parts: list[Tensor] = []

    def take(self, states: Sequence[HiddenStates]) -> None:
        self.parts += [one.features.clone() for one in states]


class Replay:
    """Runs passes by returning what was recorded, at given costs."""

    def __init__(self, recordings: dict[str, Recording], given: Given, vocab_size: int, clock: Clock) -> None:
        self._recordings = recordings
        self._given = given
        self._vocab_size = vocab_size
        self._clock = clock
        self.only_decodes = False
        """Whether the last pass computed no prompt."""

    def forward(self, rows: Sequence[Row], aux_layers: tuple[int, ...] = ()) -> Computed:
        nexts: list[int] = []
        features: list[Tensor] = []
        for row in rows:
            sequence, end = row.sequence, row.start + row.num_tokens
            recording = self._recordings[sequence.request.request_id]
            answer = [*recording.prompt, *recording.tokens]
            depths = row.draft.depths() if row.draft else ()
            places = [*range(row.start, end), *(min(end + depth - 1, len(recording.features) - 1) for depth in depths)]
            features.append(recording.features[places])
            if row.samples_next:
                nexts += [answer[min(end + depth, len(answer) - 1)] for depth in (0, *depths)]
        logits = torch.full((len(nexts), self._vocab_size), -1e4)
        logits[range(len(nexts)), nexts] = 0.0
        cost, context = self._given.costs, sum(row.start for row in rows)
        plain_ms = cost.ms(sum(row.num_tokens for row in rows), context)
        added_ms = cost.ms(sum(row.num_scheduled_tokens for row in rows), context) - plain_ms
        self.only_decodes = all(row.num_tokens == 1 for row in rows)
        ms = plain_ms + self._given.factor * added_ms + AFTER_MS * self._clock.has_looked
        self._clock.spend(ms, exactly=not self.only_decodes)  # prompts are long: chance would hide the rest
        self._clock.spend(STEP_MS + ROW_MS * len(rows))
        self._clock.has_looked = False
        return Computed(logits, torch.cat(features) if aux_layers else None, nexts)

    def compact(self, rows: Sequence[Row], sampled: Sequence[SampledTokens | None]) -> None:
        """Nothing was written."""


def submit(engine: Engine, name: str, recording: Recording, mode: str) -> None:
    choice = SpeculationChoice("auto" if mode == "auto" else "off")
    engine.send(Submit(GenerateRequest(name, recording.prompt, recording.params, speculation=choice), engine.clock()))


def record(
    loaded: LoadedModel, head: TreeHead, prompts: Sequence[tuple[int, ...]], params: Sequence[SamplingParams]
) -> list[Recording]:
    recorder = Recorder(head.info.aux_layers)
    engine = assemble(CONFIG.model_copy(update={"num_speculative_tokens": 0}), loaded, consumers=[recorder])
    recordings = [Recording(prompt, one) for prompt, one in zip(prompts, params, strict=True)]
    for i, recording in enumerate(recordings):
        recorder.parts = []
        submit(engine, str(i), recording, "off")
        while engine.has_work:
            for event in engine.step():
                recording.tokens += event.token_ids if isinstance(event, Tokens) else ()
        recording.features = torch.cat(recorder.parts)
    return recordings


def replay(
    loaded: LoadedModel, head: TreeHead, recordings: Sequence[Recording], given: Given, *, mode: str, clock: Clock
) -> tuple[float, float]:
    """Return the seconds of decoding steps and of all."""
    FREE_PROPOSERS["client"] = lambda _: Looking(clock)
    by_name = {str(i): recording for i, recording in enumerate(recordings)}
    engine = assemble(CONFIG, loaded, head=PricedHead(head, clock), cost=given.costs, clock=clock)
    engine.runner = runner = Replay(by_name, given, loaded.model.info.vocab_size, clock)
    engine.timings.clock = clock
    waiting, num_live, decoding = list(by_name), 0, 0.0
    while waiting or num_live:
        while waiting and num_live < given.at_once:
            name = waiting.pop(0)
            submit(engine, name, by_name[name], mode)
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
    assert isinstance(head, TreeHead), "the default model's head grows trees"
    prompts = [prompt.token_ids for prompt in encode_prompts(load_prompts(args.prompts), loaded.tokenizer)]
    recorded: dict[float, list[Recording]] = {}
    for run in args.runs:
        given = Given.parse(run)
        temperature, ratios = given.temperature, list[tuple[float, float]]()
        if temperature not in recorded:
            top_p = 0.95 if temperature else 1.0
            params = [
                SamplingParams(temperature=temperature, top_p=top_p, seed=i, max_tokens=args.tokens, ignore_eos=True)
                for i in range(len(prompts))
            ]
            recorded[temperature] = record(loaded, head, prompts, params)
        for order in range(args.orders):
            recordings = random.Random(order).sample(recorded[temperature], len(prompts))
            plain, auto = (
                replay(loaded, head, recordings, given, mode=mode, clock=Clock(random.Random(order), args.noise))
                for mode in ("off", "auto")
            )
            ratios.append((plain[0] / auto[0], plain[1] / auto[1]))
        shown = [f"{statistics.median(one):.3f}x ({min(one):.3f}-{max(one):.3f})" for one in zip(*ratios, strict=True)]
        print(f"{run:<16} decoding {shown[0]}, all {shown[1]}", flush=True)


if __name__ == "__main__":
    main()
