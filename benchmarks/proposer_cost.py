"""What do the free proposers cost? Microseconds of propose + commit per sample and step, by context length.

Usage: python -m benchmarks.proposer_cost [--steps 400] [--repeats 5] [--json OUT]

Text is synthetic: words drawn by Zipf's law, with passages copied from earlier text, so that n-grams recur as in
retrieval or code. Each step commits 2 tokens. `build` is the first call, which indexes the context; `set` is a whole
`ProposerSet` over all of them, with scoring and window.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import SamplingParams
from prolepsis.engine.drafting.acceptance import AcceptanceEstimator
from prolepsis.engine.drafting.candidate import DraftRequest
from prolepsis.engine.drafting.choose import ProposerSet
from prolepsis.engine.drafting.cost import flat_cost
from prolepsis.engine.drafting.proposer import Proposer, SequenceFields
from prolepsis.engine.drafting.proposers.expected_text import PredictionProposer
from prolepsis.engine.drafting.proposers.prompt_lookup import PromptLookupProposer
from prolepsis.engine.drafting.proposers.suffix import SuffixProposer
from prolepsis.engine.drafting.window import DraftWindow
from prolepsis.lab.measure.provenance import provenance

CONTEXTS = (256, 1024, 2048)
VOCAB = 49_152
STEP_TOKENS = 2
LIMIT = 16
GREEDY = SamplingParams(temperature=0.0)


def text(length: int, rng: random.Random) -> list[int]:
    """Return Zipf tokens, a third of them in passages copied from before."""
    tokens: list[int] = []
    while len(tokens) < length:
        if tokens and rng.random() < 0.03:
            start = rng.randrange(len(tokens))
            tokens += tokens[start : start + rng.randint(4, 32)]
        else:
            tokens.append(int(VOCAB ** rng.random()) - 1)
    return tokens[:length]


def warmed_suffix() -> SuffixProposer:
    """Return a suffix proposer that has seen 200 outputs."""
    rng, suffix = random.Random(1), SuffixProposer()
    for i in range(200):
        suffix.forget(SequenceFields(f"past{i}", [0, *text(256, rng)], 1, GREEDY))
    return suffix


def microseconds(proposer: Proposer | ProposerSet, context: int, steps: int, seed: int) -> tuple[float, float]:
    """Return the median of a step and the time of the first call, in microseconds."""
    tokens = text(context + STEP_TOKENS * (steps + 1), random.Random(seed))
    sample = SequenceFields(f"r{seed}", tokens[:context], context, GREEDY, prediction=tuple(tokens[context:]))

    def step() -> float:
        started = time.perf_counter()
        if isinstance(proposer, ProposerSet):
            proposer.propose([DraftRequest(sample, LIMIT)], SpecPlan())
        else:
            proposer.propose([sample], [LIMIT])
        proposed = time.perf_counter()
        sample.tokens += tokens[len(sample.tokens) : len(sample.tokens) + STEP_TOKENS]
        committing = time.perf_counter()
        proposer.commit(sample, STEP_TOKENS)
        return 1e6 * (proposed - started + time.perf_counter() - committing)

    first = step()
    times = [step() for _ in range(steps)]
    proposer.forget(sample)
    return statistics.median(times), first


def measure(steps: int, repeats: int) -> dict[str, dict[str, dict[str, float]]]:
    def everything() -> ProposerSet:
        proposers: list[Proposer] = [warmed_suffix(), PromptLookupProposer(), PredictionProposer()]
        return ProposerSet(proposers, DraftWindow(flat_cost()), AcceptanceEstimator(), VOCAB)

    makers: dict[str, Callable[[], Proposer | ProposerSet]] = {
        "prompt_lookup": PromptLookupProposer,
        "suffix": warmed_suffix,
        "prediction": PredictionProposer,
        "set": everything,
    }
    results: dict[str, dict[str, dict[str, float]]] = {}
    for name, make in makers.items():
        proposer = make()
        for context in CONTEXTS:
            runs = [microseconds(proposer, context, steps, seed) for seed in range(repeats)]
            medians = [run[0] for run in runs]
            results.setdefault(name, {})[str(context)] = {
                "median": statistics.median(medians),
                "min": min(medians),
                "max": max(medians),
                "build": statistics.median(run[1] for run in runs),
            }
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results = measure(args.steps, args.repeats)
    print(f"{'proposer':<16}{'context':>8}{'us/step':>10}{'min':>8}{'max':>8}{'build us':>10}")
    for name, contexts in results.items():
        for context, r in contexts.items():
            print(f"{name:<16}{context:>8}{r['median']:>10.1f}{r['min']:>8.1f}{r['max']:>8.1f}{r['build']:>10.0f}")
    if args.json:
        seeds = {"first_repeat": 0}  # the others count on from it
        args.json.write_text(json.dumps({"provenance": provenance(seeds, {}), "microseconds": results}, indent=2))


if __name__ == "__main__":
    main()
