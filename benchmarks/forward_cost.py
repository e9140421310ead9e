"""What does a pass cost by its number of rows? Milliseconds on the default model, for each forward, alternated.

Usage: python -m benchmarks.forward_cost [--forwards native,lean,transformers] [--context 256] [--repeats 15]
[--json OUT]

All forwards are loaded at once; a round visits every (forward, rows) once, so drift of the machine touches all alike.
Forwards rest a while before their turn, as threads of the one before still spin. The ratio to one row is taken within
a round. The lean forward is measured compiled (its buckets are awaited).
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from prolepsis.core.config import EngineConfig
from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.engine.models.load import load_model
from prolepsis.engine.models.protocol import SequenceInput, pack
from prolepsis.lab.bench.provenance import provenance

REST_S = 0.05
ROWS = (1, 2, 4, 8, 12, 16, 24, 32)


def timed(forward: str, context: int) -> tuple[str, Callable[[int], float]]:
    """Return the forward's own name and a function from rows to milliseconds."""
    model = load_model(EngineConfig.model_validate({"forward": forward})).model
    if callable(wait := getattr(model, "wait", None)):
        wait(600)
    pages = list(range(-(-(context + max(ROWS)) // PAGE_SIZE)))
    cache = model.make_cache(len(pages))

    def run(rows: int) -> float:
        batch = pack([SequenceInput(list(range(100, 100 + rows)), context, pages, keep_last=rows)])
        start = time.perf_counter()
        with torch.no_grad():
            model.forward(batch, cache)
        return 1000.0 * (time.perf_counter() - start)

    return model.info.forward, run


def measure(forwards: list[str], context: int, repeats: int) -> dict[str, dict[int, dict[str, list[float]]]]:
    """Return, by forward and rows, the milliseconds and ratios to one row of every round."""
    runs = dict(timed(forward, context) for forward in forwards)
    for run in runs.values():
        for rows in ROWS:
            run(rows)
    found: dict[str, dict[int, dict[str, list[float]]]] = {
        name: {rows: {"ms": [], "ratio": []} for rows in ROWS} for name in runs
    }
    for _ in range(repeats):
        for name, run in runs.items():
            time.sleep(REST_S)
            run(1)
            ms = {rows: run(rows) for rows in ROWS}
            for rows in ROWS:
                found[name][rows]["ms"].append(ms[rows])
                found[name][rows]["ratio"].append(ms[rows] / ms[1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forwards", default="native,lean,transformers")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = measure(options.forwards.split(","), options.context, options.repeats)
    figures: dict[str, dict[str, dict[str, float]]] = {}
    for name, by_rows in found.items():
        print(f"{name}, context {options.context}")
        figures[name] = {}
        for rows, values in by_rows.items():
            ms, ratio = values["ms"], values["ratio"]
            figures[name][str(rows)] = {
                "median_ms": statistics.median(ms),
                "min_ms": min(ms),
                "max_ms": max(ms),
                "median_ratio_to_one_row": statistics.median(ratio),
            }
            print(
                f"  {rows:3d} rows  {statistics.median(ms):7.2f} ms  ({min(ms):.2f} to {max(ms):.2f})"
                f"  {statistics.median(ratio):.2f}x of one row"
            )
    if options.json:
        options.json.write_text(json.dumps({"provenance": provenance({}, {}), "forwards": figures}, indent=2))


if __name__ == "__main__":
    main()
