"""What does charging a step to its requests cost? Microseconds of `charge` a step, at 1, 8 and 32 decoding samples.

Usage: python -m benchmarks.charging_cost [--steps 3200] [--repeats 5] [--json OUT]

Samples have 200 tokens of context. `plain`: no drafts; `drafts`: each row verifies a chain of 3.
"""

import statistics
import time

from benchmarks.script import keep, options
from prolepsis.core.requests import GenerateRequest, SamplingParams
from prolepsis.engine.accounting import charge
from prolepsis.engine.drafting.cost import PROFILE_CONTEXTS, PROFILE_TOKENS, CostCurve
from prolepsis.engine.drafting.draft import chain
from prolepsis.engine.request import open_request
from prolepsis.engine.rows import Row
from prolepsis.engine.timings import StepTiming

SAMPLES = (1, 8, 32)
NODES = {"plain": 0, "drafts": 3}
CONTEXT = 200
STEP = StepTiming(schedule=1e-4, propose=1e-3, forward=1e-2, verify=1e-3, commit=1e-4, learn=1e-4)


def rows(num_sequences: int, num_nodes: int) -> list[Row]:
    made = []
    for number in range(num_sequences):
        source = GenerateRequest(f"r{number}", (1,) * 10, SamplingParams())
        [sample] = open_request(source, 0.0, number, (), None).sequences
        sample.tokens += [1] * (CONTEXT - 9 + num_nodes)
        draft = chain((1,) * num_nodes, "suffix") if num_nodes else None
        made.append(Row(sample, CONTEXT, 1, draft, None if draft else "no_draft"))
    return made


def microseconds(num_sequences: int, num_nodes: int, steps: int) -> float:
    """Return the mean of a step."""
    made = rows(num_sequences, num_nodes)
    curve = CostCurve(
        PROFILE_TOKENS,
        PROFILE_CONTEXTS,
        [[10.0 + 0.1 * size + 0.001 * context for context in PROFILE_CONTEXTS] for size in PROFILE_TOKENS],
    )
    started = time.perf_counter()
    for _ in range(steps):
        charge(made, STEP, curve)
    return 1e6 * (time.perf_counter() - started) / steps


def measure(steps: int, repeats: int) -> dict[str, dict[str, dict[str, float]]]:
    results: dict[str, dict[str, dict[str, float]]] = {}
    for kind, num_nodes in NODES.items():
        for num_sequences in SAMPLES:
            runs = [microseconds(num_sequences, num_nodes, steps) for _ in range(repeats)]
            found = {"median": statistics.median(runs), "least": min(runs), "most": max(runs)}
            results.setdefault(kind, {})[str(num_sequences)] = found
    return results


def main() -> None:
    args = options(__doc__, steps=3200, repeats=5)
    results = measure(args.steps, args.repeats)
    print(f"{'rows':<8}{'samples':>8}{'us a step':>11}{'least':>8}{'most':>8}")
    for kind, sizes in results.items():
        for size, r in sizes.items():
            print(f"{kind:<8}{size:>8}{r['median']:>11.1f}{r['least']:>8.1f}{r['most']:>8.1f}")
    keep(args, microseconds=results)


if __name__ == "__main__":
    main()
