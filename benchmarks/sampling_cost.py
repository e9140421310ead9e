"""What does sampling cost a step? Microseconds from logits to tokens, by compiled kernel and by torch.

Usage: python -m benchmarks.sampling_cost [--vocab 49152] [--repeats 200] [--torch-repeats 10] [--seed 0] [--json OUT]

Logits are normal with a standard deviation of 3: a nucleus of hundreds of tokens, wider than a trained model's mostly
is. A round visits every case once, so drift of the machine touches all alike.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from prolepsis.core.requests import SamplingParams
from prolepsis.engine.drafting.draft import chain
from prolepsis.engine.drafting.verify import SequenceStep, verify_batch
from prolepsis.engine.native.processor import default_threads
from prolepsis.engine.sampling.noise import native_kernel, noise_key
from prolepsis.engine.sampling.processors import TokenHistory
from prolepsis.engine.sampling.sampler import Sampler
from prolepsis.lab.bench.provenance import provenance
from tests.engine.models.kernels import team

GREEDY = SamplingParams(temperature=0.0)
PLAIN = {
    "greedy": GREEDY,
    "temperature 1, full vocabulary": SamplingParams(),
    "top_p 0.95": SamplingParams(top_p=0.95),
    "temperature 0.8, top_p 0.9": SamplingParams(temperature=0.8, top_p=0.9),
    "top_k 50": SamplingParams(top_k=50),
    "top_k 50, top_p 0.9": SamplingParams(top_k=50, top_p=0.9),
    "min_p 0.05": SamplingParams(min_p=0.05),
    "top_p 0.95, penalties over 1000 tokens": SamplingParams(top_p=0.95, repetition_penalty=1.1, frequency_penalty=0.2),
}

Case = Callable[[], object]


def step(params: SamplingParams, index: int, first_row: int, depth: int = 0) -> SequenceStep:
    """Return a sample with a history of 1,000 tokens and a draft of `depth` tokens."""
    draft = chain(tuple(range(depth)), "benchmark") if depth else None
    history = TokenHistory(range(1000)) if params.has_penalties else None
    return SequenceStep(draft, params, noise_key(index, 0), 5, first_row, history)


def cases(vocab_size: int, seed: int, *, native: bool) -> dict[str, Case]:
    """Return what is timed: one step's `verify_batch` each."""
    logits = torch.randn(16, vocab_size, generator=torch.Generator().manual_seed(seed)) * 3.0
    sampler = Sampler(vocab_size, (2,), native=native, team=team(default_threads()))

    def case(steps: list[SequenceStep], rows: Tensor) -> Case:
        return lambda: verify_batch(steps, rows, sampler)

    made = {f"1 row, {name}": case([step(params, 0, 0)], logits[:1]) for name, params in PLAIN.items()}
    made["1 sample with a draft of 15, greedy"] = case([step(GREEDY, 0, 0, depth=15)], logits)
    made["16 samples, greedy"] = case([step(GREEDY, i, i) for i in range(16)], logits)
    for name in ("temperature 1, full vocabulary", "top_p 0.95"):
        made[f"16 samples, {name}"] = case([step(PLAIN[name], i, i) for i in range(16)], logits)
    return made


def measure(made: dict[str, Case], repeats: int) -> dict[str, dict[str, float]]:
    """Return median, quartiles and extremes of each case in microseconds."""
    times: dict[str, list[float]] = {name: [] for name in made}
    for case in made.values():
        case()
    for _ in range(repeats):
        for name, case in made.items():
            start = time.perf_counter()
            case()
            times[name].append(1e6 * (time.perf_counter() - start))
    return {name: summary(values) for name, values in times.items()}


def summary(values: list[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(values, n=4)
    found = {"median": middle, "p25": low, "p75": high, "min": min(values), "max": max(values)}
    return {name: round(value, 1) for name, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", type=int, default=49_152)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--torch-repeats", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found: dict[str, dict[str, dict[str, float]]] = {}
    if native_kernel() is not None:
        found["native"] = measure(cases(args.vocab, args.seed, native=True), args.repeats)
    found["torch"] = measure(cases(args.vocab, args.seed, native=False), args.torch_repeats)
    for kind, by_case in found.items():
        for name, figures in by_case.items():
            print(f"{kind:7}{name:60}{figures['median']:10.1f} us  ({figures['p25']} to {figures['p75']})")
    if args.json:
        document = {
            "provenance": provenance({"logits": args.seed}, {}),
            "vocab_size": args.vocab,
            "microseconds": found,
        }
        args.json.write_text(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
