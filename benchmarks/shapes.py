"""Do the shapes that people run fit, load quickly, decode at the speed of memory and stay exact?

Usage: python -m benchmarks.shapes [--shapes llama-3.2-1b,qwen3-4b] [--folder /tmp] [--limit 14GiB] [--tokens 48]
[--port 8399] [--json OUT]

Each shape is written as a GGUF file of random weights in the mixture Q4_K_M, served twice from a cache directory that
holds compiled code only (first start, second start), loaded once more for the pass of one row beside the bandwidth of
this machine in the same minute, and asked for answers with and without drafts: its own answers, some tokens of which
are exchanged, brought as predictions. The file is deleted then. A shape that does not fit is refused with the sum.
"""

import argparse
import asyncio
import gc
import json
import os
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.random_gguf import SHAPES, weight_bytes, write_random
from benchmarks.script import keep, options
from prolepsis.core.ask import TimedAnswer, ask
from prolepsis.core.config import EngineConfig
from prolepsis.core.engine_client import EngineClient
from prolepsis.core.errors import MemoryPlanError
from prolepsis.core.files import cache_directory
from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.core.requests import GenerateRequest, SamplingParams, SpeculationChoice
from prolepsis.engine.kv.machine import host_memory
from prolepsis.engine.kv.memory import MemoryUse, Room, format_bytes, parse_bytes
from prolepsis.engine.models.files.described import bytes_per_pass
from prolepsis.engine.models.load import LoadedModel, load_model
from prolepsis.engine.models.protocol import SequenceInput, TargetModel, pack
from prolepsis.engine.native.bandwidth import read_bandwidth
from prolepsis.engine.native.processor import default_threads
from prolepsis.engine.start import EngineStart
from tests.commands import prolepsis, serving

Figures = dict[str, object]
CONTEXT = 256
MODES = {"greedy": SamplingParams(temperature=0.0), "sampled": SamplingParams(temperature=1.0, seed=7, top_p=0.95)}
SETTINGS = {"kv_memory": "512MiB", "max_model_len": 2048}


def measure(name: str, folder: Path, options: argparse.Namespace) -> Figures:
    """Return the figures of one shape; its file is written to `folder`, which also is the cache of all starts."""
    size = weight_bytes(SHAPES[name])
    try:
        room = Room("what --limit allows", min(options.limit, host_memory().free))
        room.check(MemoryUse(f"weights of {name}", size), MemoryUse("KV cache, workspace and program", 2 << 30))
    except MemoryPlanError as error:
        return {"refused": str(error)}
    (folder / "native").symlink_to(options.compiled)
    os.environ["PROLEPSIS_CACHE"] = str(folder)
    file, started = folder / f"{name}.gguf", time.perf_counter()
    write_random(file, SHAPES[name])
    found: Figures = {"weights": format_bytes(size), "write_s": round(time.perf_counter() - started, 1)}
    found |= {f"{which}_start_s": start(file, options.port) for which in ("first", "second")}
    started = time.perf_counter()
    target = load_model(EngineConfig(model=str(file)))
    found |= {"load_s": round(time.perf_counter() - started, 1), **passes(target.model, bytes_per_pass(file))}
    return found | asyncio.run(exactness(target, options.tokens))


def start(file: Path, port: int) -> float:
    """Return the seconds from the start of a server to ready."""
    settings = [f"--{key.replace('_', '-')}={value}" for key, value in SETTINGS.items()]
    command = prolepsis("serve", "--model", str(file), "--port", str(port), "--store", "none", *settings)
    started = time.perf_counter()
    with serving(command, f"http://127.0.0.1:{port}/health/ready", file.with_suffix(".log"), os.environ, wait_s=600):
        return round(time.perf_counter() - started, 1)


def passes(model: TargetModel, num_bytes: int) -> Figures:
    """Return milliseconds of the fastest passes of 1 and 4 rows, and what memory allows for the weights' bytes."""
    pages = list(range(-(-(CONTEXT + 8) // PAGE_SIZE)))
    cache = model.make_cache(len(pages))
    model.forward(pack([SequenceInput(list(range(2, 2 + CONTEXT)), 0, pages)]), cache)
    times: dict[int, list[float]] = {1: [], 4: []}
    for _ in range(25):
        for rows, seconds in times.items():
            batch = pack([SequenceInput(list(range(9, 9 + rows)), CONTEXT, pages, keep_last=rows)])
            started = time.perf_counter()
            model.forward(batch, cache)
            seconds.append(time.perf_counter() - started)
    bandwidth = read_bandwidth(min(num_bytes, 1 << 30), default_threads(), seconds=2.0)
    one, four = (min(times[rows]) for rows in (1, 4))
    return {
        "forward": model.info.forward,
        "row_ms": round(1000 * one, 1),
        "median_row_ms": round(1000 * statistics.median(times[1]), 1),
        "four_rows_ms": round(1000 * four, 1),
        "limit_ms": round(1000 * num_bytes / bandwidth, 1),
        "of_limit": round(num_bytes / bandwidth / one, 2),
        "bandwidth_gb_s": round(bandwidth / 1e9, 1),
    }


async def exactness(target: LoadedModel, num_tokens: int) -> Figures:
    """Return the mode, and whether answers have other tokens with drafts than without."""
    config = EngineConfig(model=target.model.info.name, **SETTINGS)  # type: ignore[arg-type]
    client = EngineStart(config, target, None, ()).first()
    found: Figures = {}
    for name, params in MODES.items():
        plain = await _answer(client, name, params, num_tokens, ())
        drafted = await _answer(client, name, params, num_tokens, _spoilt(plain.token_ids))
        found[name] = {
            "equal": plain.token_ids == drafted.token_ids,
            "drafted": drafted.stats.num_draft_tokens,
            "accepted": drafted.stats.num_accepted,
            "different_tokens": len(set(plain.token_ids)),
        }
    info = client.info
    await client.close()
    return {"exactness": info.exactness, "reason": info.exactness_reason, "answers": found}


async def _answer(
    client: EngineClient, name: str, params: SamplingParams, num_tokens: int, prediction: tuple[int, ...]
) -> TimedAnswer:
    params = replace(params, max_tokens=num_tokens, ignore_eos=True)
    choice = SpeculationChoice("always" if prediction else "off")
    request = GenerateRequest(
        f"{name} {bool(prediction)}",
        tuple(range(2, 2 + 3 * PAGE_SIZE)),
        params,
        speculation=choice,
        cache_salt=f"{bool(prediction)}",
        prediction_token_ids=prediction,
    )
    return await ask(client, request)


def _spoilt(tokens: tuple[int, ...]) -> tuple[int, ...]:
    """Return the tokens with every seventh exchanged, so that some drafts are rejected."""
    return tuple(token if i % 7 != 6 else token ^ 1 for i, token in enumerate(tokens))


def main() -> None:
    """Measure the shapes that are named, by default all of them, one after another."""
    args = options(
        __doc__, shapes=",".join(SHAPES), folder=Path(tempfile.gettempdir()), limit="14GiB", tokens=48, port=8399
    )
    args.limit = parse_bytes(args.limit)
    args.compiled = cache_directory() / "native"  # of the cache that stays
    args.compiled.mkdir(parents=True, exist_ok=True)
    figures: dict[str, Figures] = {}
    for name in args.shapes.split(","):
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            figures[name] = measure(name, Path(folder), args)
        gc.collect()
        print(name, json.dumps(figures[name]), flush=True)
        keep(args, seeds={"weights": 0}, figures=figures)


if __name__ == "__main__":
    main()
