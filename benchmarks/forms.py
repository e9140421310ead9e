"""Are calls and forms the same with and without speculation, streamed and whole, and valid, with the marks of families?

    PROLEPSIS_TEST_MODELS=FOLDER python -m benchmarks.forms [--vocabularies NAME,...] [--templates NAME,...]
        [--requests 200] [--at-once 4] [--seed 0] [--json OUT]

A tiny random model for each vocabulary has the marks of all templates as tokens. Its requests, `--requests` for each
vocabulary, take turns through the templates; each is asked in the modes off, auto and on, streamed and whole, half of
them with the answer in mode off as their client's prediction, and as a response. Exits 1 where answers differ, or one
is not what its request may get.
"""

import argparse
import asyncio
import json
import random
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from prolepsis.core.config import EngineConfig
from prolepsis.core.terminal.output import quiet_logs
from prolepsis.engine.models.files.gguf_file import CONTROL, USER_DEFINED
from prolepsis.engine.models.files.tokenizer_files import tokenizer_parts, with_formats
from prolepsis.engine.models.load import LoadedModel, load_model
from prolepsis.engine.text.model_tokenizer import ModelTokenizer
from prolepsis.lab.measure.provenance import provenance
from tests.engine.models.families import template_of, write_named
from tests.exact.form_server import Answers, answer_all
from tests.exact.forms import Asked, drawn, fault

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
    "<|call|>",
    "<|return|>",
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
    return replace(loaded, tokenizer=ModelTokenizer(with_formats(parts)))


def judged(asked: Asked, answers: Answers | str, tokenizer: ModelTokenizer, counts: Counter[str]) -> list[str]:
    """Count an answer's kinds, and return what is wrong with it."""
    if isinstance(answers, str):
        counts["errors"] += 1
        return [answers]
    first = answers.chats[0]
    wrong = [why for answer in dict.fromkeys(answers.chats) if (why := fault(asked, answer, tokenizer))]
    counts["answers"] += len(answers.chats) + len(answers.responses)
    counts["invalid"] += len(wrong)
    counts["different"] += answers.differ
    counts["tokens"] += len(first.tokens)
    counts["with calls"] += bool(first.calls)
    counts["with several calls"] += len(first.calls) > 1
    counts["text beside calls"] += bool(first.calls and first.content)
    counts["with reasoning"] += bool(first.reasoning)
    counts["cut"] += first.finish == "length"
    if answers.differ:
        wrong.append(f"different: {answers}")
    return [f"{why}\n    {tokenizer.decode(first.tokens, skip_special_tokens=False)!r}\n    {first}" for why in wrong]


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
            if served.tokenizer.formats.tools is None:
                print(f"{vocabulary:14} {name:38} refused: the vocabulary cannot spell its calls", flush=True)
                continue
            share = range(number, args.requests, len(names))
            requests = [drawn(draw, served.tokenizer) for _ in share]
            bodies = [asked.body for asked in requests]
            answers = asyncio.run(answer_all(config, served, bodies, args.at_once))
            counts = found[name] = Counter[str]()
            for asked, one in zip(requests, answers, strict=True):
                for why in judged(asked, one, served.tokenizer, counts):
                    print(f"  {asked.kind} {json.dumps(asked.body)}\n    {why}", file=sys.stderr, flush=True)
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
