"""What does choosing drafts cost? Microseconds a step of `ProposerSet`, apart from proposers, at 1 and 16 samples.

Usage: python -m benchmarks.selection_cost [--steps 2000] [--repeats 5] [--json OUT]

Scripted proposers hand over drafts made beforehand: `free` a chain of 8 tokens, `free tree` a tree of 14 nodes,
`costly` such a tree of a proposer that is asked only where it pays, `both` the two trees. A token of a draft is
accepted with chance 0.6; a pass costs 8 ms and 0.2 more a row. `propose` asks, scores, chooses and cuts; `commit`
judges what was proposed by what was committed.
"""

import json
import random
import statistics
import time
from itertools import count

from benchmarks.script import options
from prolepsis.core.plan import SpecPlan
from prolepsis.engine.drafting.acceptance import AcceptanceEstimator
from prolepsis.engine.drafting.candidate import DraftRequest
from prolepsis.engine.drafting.choose import ProposerSet
from prolepsis.engine.drafting.cost import flat_cost
from prolepsis.engine.drafting.draft import Draft, best_first, chain
from prolepsis.engine.drafting.proposer import SequenceFields, SequenceView
from prolepsis.engine.drafting.window import DraftWindow, StepLoad
from prolepsis.lab.measure.provenance import provenance
from tests.fake_proposer import Script, Scripted

VOCAB = 49_152
LIMIT = 16
DEPTH = 8
SAMPLES = (1, 16)
_PARENTS = (-1, 0, 1, 2, 3, 4, 5, 6, -1, 0, 8, 1, 9, 10)  # a chain of 8 and branches


def chains(name: str) -> Script:
    """Return a script of one chain, cut to the limit."""
    drafts = [chain(tuple(range(1, 1 + size)), name) for size in range(LIMIT + 1)]
    return lambda sample, limit: drafts[min(limit, DEPTH)]


def trees(name: str, first: int, seed: int) -> Script:
    """Return a script of trees with estimates of their own; the first tokens of their chains are common to all."""
    rng = random.Random(seed)
    drafts = [_tree(name, first, 1000 * seed, rng) for _ in range(64)]
    candidate = count()
    cut = [[draft.cut(limit) for limit in range(LIMIT + 1)] for draft in drafts]
    return lambda sample, limit: cut[next(candidate) % len(cut)][limit]


def _tree(name: str, first: int, own: int, rng: random.Random) -> Draft:
    alive: list[float] = []
    nodes: list[tuple[int, int, float, int]] = []
    for node, parent in enumerate(_PARENTS):
        above = 1.0 if parent < 0 else alive[parent]
        alive.append(above * rng.uniform(0.3, 0.9) * (1.0 if node < DEPTH else 0.3))
        token = node + 1 if node < first else own + node
        nodes.append((token, parent, alive[-1], int(8 * alive[-1])))
    return best_first(nodes, name)


def scripted(kind: str) -> list[Scripted]:
    """Return the proposers of one row of the table."""
    free = Scripted(trees("free", 4, 1), "free")
    costly = Scripted(trees("costly", 2, 2), "costly", free=False)
    return {"free": [Scripted(chains("free"), "free")], "free tree": [free], "costly": [costly]}.get(
        kind, [free, costly]
    )


def microseconds(kind: str, num_sequences: int, steps: int, seed: int) -> tuple[float, float]:
    """Return medians of a step's `propose` and `commit`, less what was spent in the proposers."""
    rng = random.Random(seed)
    samples: list[SequenceView] = [SequenceFields(f"r{i}", [0], 1) for i in range(num_sequences)]
    proposers = ProposerSet(scripted(kind), DraftWindow(flat_cost(8.0, 0.2)), AcceptanceEstimator(), VOCAB)
    proposed, committed = [], []
    for _ in range(steps):
        started, inside = time.perf_counter(), sum(proposers.seconds.values())
        load = StepLoad(num_sequences, sum(len(s.tokens) for s in samples), 512)
        chosen = proposers.propose([DraftRequest(sequence, LIMIT) for sequence in samples], SpecPlan(), load)
        proposed.append(time.perf_counter() - started - (sum(proposers.seconds.values()) - inside))
        news = [_follow(choice.draft, rng) for choice in chosen]
        started = time.perf_counter()
        for sample, new in zip(samples, news, strict=True):
            sample.tokens.extend(new)  # type: ignore[attr-defined]
            proposers.judge(sample)
            proposers.commit(sample, len(new))
        committed.append(time.perf_counter() - started)
    return 1e6 * statistics.median(proposed), 1e6 * statistics.median(committed)


def _follow(draft: Draft | None, rng: random.Random) -> list[int]:
    new: list[int] = []
    at = -1
    while draft is not None and at + 1 < len(draft.tokens) and draft.parents[at + 1] == at and rng.random() < 0.6:
        at += 1
        new.append(draft.tokens[at])
    return [*new, 1 + rng.randrange(2)]


def measure(steps: int, repeats: int) -> dict[str, dict[str, dict[str, float]]]:
    results: dict[str, dict[str, dict[str, float]]] = {}
    for kind in ("free", "free tree", "costly", "both"):
        for num_sequences in SAMPLES:
            runs = [microseconds(kind, num_sequences, steps, seed) for seed in range(repeats)]
            results.setdefault(kind, {})[str(num_sequences)] = {
                "propose": statistics.median(run[0] for run in runs),
                "commit": statistics.median(run[1] for run in runs),
                "least": min(sum(run) for run in runs),
                "most": max(sum(run) for run in runs),
            }
    return results


def main() -> None:
    args = options(__doc__, steps=2000, repeats=5)
    results = measure(args.steps, args.repeats)
    print(f"{'proposers':<12}{'samples':>8}{'propose us':>12}{'commit us':>11}{'least':>8}{'most':>8}")
    for kind, sizes in results.items():
        for size, r in sizes.items():
            print(f"{kind:<12}{size:>8}{r['propose']:>12.1f}{r['commit']:>11.1f}{r['least']:>8.1f}{r['most']:>8.1f}")
    if args.json:
        seeds = {"first_repeat": 0}  # the others count on from it
        args.json.write_text(json.dumps({"provenance": provenance(seeds, {}), "microseconds": results}, indent=2))


if __name__ == "__main__":
    main()
