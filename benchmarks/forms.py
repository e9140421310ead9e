"""Are calls and forms the same with and without speculation, streamed and whole, and valid, with the marks of families?

    PROLEPSIS_TEST_MODELS=FOLDER python -m benchmarks.forms [--vocabularies NAME,...] [--templates NAME,...]
        [--requests 200] [--at-once 4] [--seed 0] [--json OUT]

A tiny random model for each vocabulary has the marks of all templates as tokens. Its requests, `--requests` for each
vocabulary, take turns through the templates; each is asked in the modes off, auto and on, streamed and whole, half of
them with the answer in mode off as their client's prediction. Exits 1 where answers differ, or one is not what its
request may get.
"""

import argparse
import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from prolepsis.api.app import build
from prolepsis.cli.bench.provenance import provenance
from prolepsis.cli.output import quiet_logs
from prolepsis.core.config import EngineConfig, ServerConfig
from prolepsis.engine.build import assemble
from prolepsis.engine.thread import ThreadEngineClient
from prolepsis.models.files.gguf import CONTROL, USER_DEFINED
from prolepsis.models.files.tokenizer import Tokenizer
from prolepsis.models.files.tokenizer_files import tokenizer_parts, with_formats
from prolepsis.models.load import LoadedModel, load_model
from prolepsis.telemetry.metrics import Metrics
from tests.exact.forms import Asked, all_answers, drawn, fault
from tests.models.families import template_of, write_named

VOCABULARIES = "byte-level,sentencepiece,qwen2,llama-bpe,phi-3,qwen35,gemma-4"
TEMPLATES = (
    "hermes,Qwen-Qwen3-0.6B,Qwen3-Coder,deepseek-ai-DeepSeek-V3.1,unsloth-mistral-Devstral-Small-2507,GLM-4.6,"
    "google-gemma-4-31B-it,meta-llama-Llama-3.2-3B-Instruct,openai-gpt-oss-120b,LFM2.5-8B-A1B"
)
CONTROLS = (
    "<|im_start|>",
    "<|im_end|>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<|channel|>",
    "<|message|>",
    "<|start|>",
    "<|end|>",
)
MARKS = (
    *("<tool_call>", "</tool_call>", "<think>", "</think>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    *("<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>", "<|tool_call_start|>", "<|tool_call_end|>"),
    *(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁sep｜>",
    ),
)
"""The marks of the templates: hidden and shown tokens."""


def with_template(loaded: LoadedModel, path: Path, name: str) -> LoadedModel:
    """Return the model as if its file had another template."""
    parts = replace(tokenizer_parts(path), template=template_of(name))
    return replace(loaded, tokenizer=Tokenizer(with_formats(parts)))


async def compare(
    http: httpx.AsyncClient, asked: Asked, tokenizer: Tokenizer, counts: Counter[str], *, predicts: bool
) -> list[str]:
    """Ask in all variants; return what is wrong."""
    try:
        answers = await all_answers(http, asked, tokenizer, predicts=predicts)
    except AssertionError as error:
        counts["errors"] += 1
        return [f"error: {error}"]
    found = list(dict.fromkeys(answers))
    wrong = [why for answer in found if (why := fault(asked, answer, tokenizer))]
    counts["invalid"] += len(wrong)
    counts["different"] += len(found) > 1
    first = answers[0]
    counts["answers"] += len(answers)
    counts["tokens"] += len(first.tokens)
    counts["with calls"] += bool(first.calls)
    counts["with several calls"] += len(first.calls) > 1
    counts["text beside calls"] += bool(first.calls and first.content)
    counts["with reasoning"] += bool(first.reasoning)
    counts["cut"] += first.finish == "length"
    if len(found) > 1:
        wrong.append(f"different: {[answers.index(one) for one in found]}")
    return [f"{why}\n    {tokenizer.decode(first.tokens, skip_special_tokens=False)!r}\n    {first}" for why in wrong]


async def serve(config: EngineConfig, loaded: LoadedModel, requests: Sequence[Asked], at_once: int) -> Counter[str]:
    counts, places = Counter[str](), asyncio.Semaphore(at_once)
    client = ThreadEngineClient(assemble(config, loaded))
    app = build(ServerConfig(served_model_names=("tiny",)), client, loaded.tokenizer, Metrics())

    async def one(http: httpx.AsyncClient, number: int, asked: Asked) -> None:
        async with places:
            for why in await compare(http, asked, loaded.tokenizer, counts, predicts=number % 2 == 1):
                print(f"  {asked.kind} {json.dumps(asked.body)}\n    {why}", file=sys.stderr, flush=True)

    try:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
            await asyncio.gather(*(one(http, number, asked) for number, asked in enumerate(requests)))
    finally:
        await client.close()
    return counts


def measure(vocabulary: str, args: argparse.Namespace) -> dict[str, Counter[str]]:
    """Return counts by template."""
    found, draw, names = dict[str, Counter[str]](), random.Random(args.seed), args.templates.split(",")
    added = dict.fromkeys(CONTROLS, CONTROL) | dict.fromkeys(MARKS, USER_DEFINED)
    with TemporaryDirectory() as folder:
        path = write_named(Path(folder) / "tiny.gguf", vocabulary, "chatml", added)
        config = EngineConfig(model=str(path), max_model_len=8192, strict="off", kv_memory="64MiB")
        loaded = load_model(config)
        for number, name in enumerate(names):
            served = with_template(loaded, path, name)
            share = range(number, args.requests, len(names))
            requests = [drawn(draw, served.tokenizer) for _ in share]
            found[name] = asyncio.run(serve(config, served, requests, args.at_once))
            print(f"{vocabulary:14} {name:38} {dict(found[name])}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabularies", default=VOCABULARIES)
    parser.add_argument("--templates", default=TEMPLATES)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    quiet_logs()
    found = {vocabulary: measure(vocabulary, args) for vocabulary in args.vocabularies.split(",")}
    total = sum((counts for by in found.values() for counts in by.values()), Counter[str]())
    print(f"all: {dict(total)}")
    if args.json:
        document: dict[str, Any] = {"provenance": provenance({"requests": args.seed}, {}), "counts": found}
        args.json.write_text(json.dumps(document, indent=2))
    raise SystemExit(1 if total["errors"] + total["invalid"] + total["different"] else 0)


if __name__ == "__main__":
    main()
