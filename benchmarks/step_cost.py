"""What does a step take outside the forward? Processor time of one thread, verb by verb, in microseconds.

Usage: python -m benchmarks.step_cost [--steps 300] [--repeats 5] [--json OUT]

A fake target says a fixed function of the last token and the position; its pass copies the logits, which empties the
caches as a real pass does. The proposers that are loaded by default draft, and a costly one stands for the draft head:
it knows the target mostly. Acceptance is therefore of no real text. Told are medians over repeats of the median step;
`outside` leaves out the pass and the costly proposer itself.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from prolepsis.core.engine_client import EngineInfo
from prolepsis.core.messages import Submit
from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.core.plan import AppliedPlan
from prolepsis.core.requests import GenerateRequest, SamplingParams, SpeculationChoice
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.engine.drafting.acceptance import AcceptanceEstimator
from prolepsis.engine.drafting.choose import ProposerSet
from prolepsis.engine.drafting.cost import flat_cost
from prolepsis.engine.drafting.draft import ROOT, Draft, best_first
from prolepsis.engine.drafting.proposer import Proposer, SequenceView
from prolepsis.engine.drafting.proposers.expected_text import PredictionProposer
from prolepsis.engine.drafting.proposers.grammar import GrammarProposer
from prolepsis.engine.drafting.proposers.suffix import SuffixProposer
from prolepsis.engine.drafting.window import DraftWindow
from prolepsis.engine.kv.pages import PagePool
from prolepsis.engine.models.protocol import Batch, KVCache, ModelInfo
from prolepsis.engine.paging import Paging
from prolepsis.engine.runner import Runner
from prolepsis.engine.sampling.sampler import Sampler
from prolepsis.engine.scheduler import Scheduler, SchedulerLimits
from prolepsis.engine.speculation import Speculation
from prolepsis.engine.step import Engine, EngineParts
from prolepsis.engine.timings import PHASES, Timings
from prolepsis.engine.verification import Verification
from prolepsis.lab.measure.provenance import provenance

VOCAB, STATES, LENGTH = 49_152, 128, 1024
COLUMNS = (*PHASES, "costly", "outside", "nodes", "emitted")
SAMPLED = SamplingParams(temperature=0.8, top_p=0.95, seed=1, max_tokens=LENGTH // 2, ignore_eos=True)
GREEDY = SamplingParams(temperature=0.0, max_tokens=LENGTH // 2, ignore_eos=True)


def state_of(token: int, position: int) -> int:
    """Return the row of the table that speaks after a token; texts repeat for a while."""
    return (token * 31 + position // 48) % STATES


class NoCache:
    """Keys and values of a model that needs none."""

    num_pages = 1 << 12

    def copy_page(self, source: int, target: int) -> None: ...

    def clear_page(self, page: int) -> None: ...

    def move(self, pages: Sequence[int], moves: Sequence[tuple[int, int]]) -> None: ...

    def views(self, page: int) -> Sequence[Tensor]:
        return ()


class TableTarget:
    """Logits from a table: a few likely tokens in each row, among noise."""

    info = ModelInfo("table", "table", VOCAB, LENGTH, 1, PAGE_SIZE, 0, (2,))

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._table = 2.0 * torch.randn(STATES, VOCAB, generator=generator)
        likely = torch.randint(3, VOCAB, (STATES, 6), generator=generator)
        self._table.scatter_(1, likely, torch.tensor([15.0, 14.0, 12.5, 12.0, 11.0, 10.0]).expand(STATES, 6))
        self.likely: list[list[int]] = self._table.topk(4).indices.tolist()

    def make_cache(self, num_pages: int) -> KVCache:
        return NoCache()

    def forward(self, batch: Batch, cache: KVCache) -> Tensor:
        return self._table[self._states(batch)]

    def forward_features(self, batch: Batch, cache: KVCache, aux_layers: Sequence[int]) -> tuple[Tensor, Tensor]:
        return self.forward(batch, cache), torch.empty(0)

    def forward_argmax(
        self, batch: Batch, cache: KVCache, aux_layers: Sequence[int]
    ) -> tuple[Tensor, Tensor, list[int]]:
        states = self._states(batch)
        return self._table[states], torch.empty(0), [self.likely[state][0] for state in states]

    def _states(self, batch: Batch) -> list[int]:
        tokens, positions = batch.token_ids.tolist(), batch.positions.tolist()
        return [state_of(tokens[row], positions[row]) for row in batch.logit_rows.tolist()]


class CostlyTrees(Proposer):
    """Trees of two tokens a node and four levels, mostly as the target says."""

    name = "draft_head"
    one_pass = True

    def __init__(self, target: TableTarget, seed: int) -> None:
        self._target = target
        self._rng = random.Random(seed)

    def propose(self, sequences: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft | None]:
        return [self._tree(sequence, limit) for sequence, limit in zip(sequences, limits, strict=True)]

    def _tree(self, sequence: SequenceView, limit: int) -> Draft | None:
        nodes: list[tuple[int, int, float, int]] = []
        level = [(ROOT, sequence.tokens[-1], 1.0)]
        for depth in range(4):
            below: list[tuple[int, int, float]] = []
            for above, token, alive in level[:3]:
                state = state_of(token, len(sequence.tokens) - 1 + depth)
                state = state if self._rng.random() < 0.8 else self._rng.randrange(STATES)
                for follower, chance in zip(self._target.likely[state][:2], (0.6, 0.25), strict=True):
                    if len(nodes) < limit:
                        below.append((len(nodes), follower, alive * chance))
                        nodes.append((follower, above, alive * chance, int(10 * chance)))
            level = below
        return best_first(nodes, self.name) if nodes else None


def engine(seed: int) -> Engine:
    """Return an engine over a table, all of whose times are processor time."""
    target = TableTarget(seed)
    free: list[Proposer] = [GrammarProposer(), SuffixProposer(), PredictionProposer()]
    estimates = (DraftWindow(flat_cost(8.0, 0.2)), AcceptanceEstimator())
    proposers = ProposerSet([*free, CostlyTrees(target, seed)], *estimates, VOCAB, clock=time.thread_time)
    plan = AppliedPlan()
    paging = Paging(PagePool(1 << 12, PAGE_SIZE), NoCache().copy_page, NoCache().clear_page)
    parts = EngineParts(
        info=EngineInfo("table", "table", VOCAB, LENGTH, "fp", "strict", "table", proposers.names),
        plan=plan,
        scheduler=Scheduler(SchedulerLimits(32, 512, LENGTH, VOCAB, (2,)), paging, plan),
        speculation=Speculation(proposers, max_step_tokens=512, max_model_len=LENGTH),
        runner=Runner(target, NoCache()),
        verifier=Verification(Sampler(VOCAB, (2,)), max_model_len=LENGTH),
        observer=Metrics(),
    )
    made = Engine(parts)
    made.timings = Timings(clock=time.thread_time)
    return made


def medians(params: SamplingParams, choice: SpeculationChoice, at_once: int, steps: int, seed: int) -> dict[str, float]:
    """Return the median of each part over steps in which `at_once` sequences decode."""
    running, rng = engine(seed), random.Random(seed)
    proposers, scheduler = running.speculation.proposers, running.scheduler
    found: list[dict[str, float]] = []
    sent = 0
    while len(found) < steps:
        for _ in range(at_once - len(scheduler.requests)):
            prompt = tuple(rng.randrange(3, VOCAB) for _ in range(rng.randint(40, 200)))
            source = GenerateRequest(str(sent), prompt, params, speculation=choice, cache_salt=str(sent))
            running.send(Submit(source, running.clock()))
            sent += 1
        live, costly = list(scheduler.running), proposers.seconds["draft_head"]
        known = sum(len(sequence.tokens) for sequence in live)
        running.step()
        timing = running.timings.step
        if len(live) == timing.num_sequences == at_once and all(one.num_output_tokens > 8 for one in live):
            parts = {name: 1e6 * seconds for name, seconds in timing.phases().items()}
            parts["costly"] = 1e6 * (proposers.seconds["draft_head"] - costly)
            parts["outside"] = 1e6 * timing.outside_forward - parts["costly"]
            parts["nodes"] = float(timing.num_tokens - at_once)
            parts["emitted"] = float(sum(len(sequence.tokens) for sequence in live) - known)
            found.append(parts)
    return {name: statistics.median(parts[name] for parts in found) for name in COLUMNS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    figures: dict[str, dict[str, float]] = {}
    print(f"{'us':<18}" + "".join(f"{name:>9}" for name in COLUMNS))
    for at_once in (1, 16):
        for params, kind in ((GREEDY, "greedy"), (SAMPLED, "sampled")):
            for choice in (SpeculationChoice("off"), SpeculationChoice()):
                runs = [medians(params, choice, at_once, args.steps, seed) for seed in range(args.repeats)]
                row = {name: statistics.median(run[name] for run in runs) for name in COLUMNS}
                name = f"{at_once} {kind} {choice.mode}"
                figures[name] = row
                print(f"{name:<18}" + "".join(f"{row[column]:>9.0f}" for column in COLUMNS), flush=True)
    if args.json:
        args.json.write_text(json.dumps({"provenance": provenance({"first": 0}, {}), "us": figures}, indent=2))


if __name__ == "__main__":
    main()
