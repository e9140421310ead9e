"""Which grammar library is faster? Time to compile a schema and to compute a token mask, llguidance against xgrammar.

Usage: python -m benchmarks.grammar_libraries [--model NAME] [--repeats 5] [--json OUT]

Each library that is installed compiles ten schemas for the model's vocabulary, without its cache, and walks an instance
of each token by token: a mask, then the token. A first walk starts from the freshly compiled grammar (cold), a second
follows with what the library has learned (warm). Compact JSON in the style of `json.dumps` for both. A token that a
library refuses is counted, not hidden.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from benchmarks.structured_schemas import BY_PROMPT, Schema, generated, instance, record, text
from prolepsis.core.config import DEFAULT_MODEL
from prolepsis.core.requests import JSON_STYLE
from prolepsis.engine.models.files.store import resolve
from prolepsis.engine.models.files.tokenizer_files import load_tokenizer
from prolepsis.engine.text.model_tokenizer import ModelTokenizer
from prolepsis.lab.measure.provenance import provenance


class Walker(Protocol):
    """A grammar on its way along an answer."""

    def mask(self) -> None: ...

    def take(self, token: int) -> bool: ...


Compiled = Callable[[], Walker]
Library = Callable[[Schema], Compiled]


def llguidance(tokenizer: ModelTokenizer) -> Library:
    from llguidance import LLMatcher, LLTokenizer

    vocabulary = LLTokenizer(tokenizer.to_json(), eos_token=list(tokenizer.eos_token_ids))

    class Walking:
        def __init__(self, start: LLMatcher) -> None:
            self._matcher = start.deep_copy()

        def mask(self) -> None:
            self._matcher.compute_bitmask()

        def take(self, token: int) -> bool:
            return self._matcher.try_consume_tokens([token]) == 1

    def compile_(schema: Schema) -> Compiled:
        source = LLMatcher.grammar_from_json_schema(schema, overrides=JSON_STYLE)  # type: ignore[arg-type]
        start = LLMatcher(vocabulary, source, log_level=0)
        if start.is_error():
            raise ValueError(start.get_error())
        return lambda: Walking(start)

    return compile_


def xgrammar(tokenizer: ModelTokenizer) -> Library:
    import xgrammar as xgr

    tokens = sorted(tokenizer.vocab, key=tokenizer.vocab.__getitem__)
    info = xgr.TokenizerInfo(
        tokens,
        xgr.VocabType.BYTE_LEVEL,
        vocab_size=tokenizer.vocab_size,
        stop_token_ids=list(tokenizer.eos_token_ids),
    )
    compiler = xgr.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    bitmask = xgr.allocate_token_bitmask(1, tokenizer.vocab_size)

    class Walking:
        def __init__(self, compiled: object) -> None:
            self._matcher = xgr.GrammarMatcher(compiled)

        def mask(self) -> None:
            self._matcher.fill_next_token_bitmask(bitmask)

        def take(self, token: int) -> bool:
            return bool(self._matcher.accept_token(token))

    def compile_(schema: Schema) -> Compiled:
        compiled = compiler.compile_json_schema(json.dumps(schema), any_whitespace=False, separators=(", ", ": "))
        return lambda: Walking(compiled)

    return compile_


LIBRARIES: dict[str, Callable[[ModelTokenizer], Library]] = {"llguidance": llguidance, "xgrammar": xgrammar}


def cases() -> dict[str, tuple[Schema, object]]:
    """Return ten schemas, each with an instance."""
    found: dict[str, tuple[Schema, object]] = {}
    for seed in range(5):
        schema = generated(seed)
        found[f"generated {seed}"] = schema, instance(schema, random.Random(seed))
    people, users = BY_PROMPT["json-0"], BY_PROMPT["json-3"]
    found["6 people"] = people, instance(people, random.Random(0))
    found["5 users"] = users, instance(users, random.Random(0))
    many = record({f"member_{i}": text(20) for i in range(40)})
    found["40 strings"] = many, instance(many, random.Random(0))
    codes = [f"{i * i:05d}-{i:03x}" for i in range(500)]
    found["one of 500"] = {"enum": codes}, codes[321]
    found["any object"] = {"type": "object"}, {"name": "Anna", "nested": {"list": [1, 2.5, None, True, "two words"]}}
    return found


def measure(
    library: Library, tokenizer: ModelTokenizer, schema: Schema, value: object, repeats: int
) -> dict[str, object]:
    """Return milliseconds to compile, microseconds of a mask, and tokens refused."""
    tokens = tokenizer.encode(json.dumps(value), add_special_tokens=False)
    compile_ms: list[float] = []
    cold: list[float] = []
    warm: list[float] = []
    takes: list[float] = []
    refused = 0
    for _ in range(repeats):
        started = time.perf_counter()
        compiled = library(schema)
        compile_ms.append(1e3 * (time.perf_counter() - started))
        for times in (cold, warm):
            walker = compiled()
            for token in tokens:
                started = time.perf_counter()
                walker.mask()
                times.append(1e6 * (time.perf_counter() - started))
                started = time.perf_counter()
                taken = walker.take(token)
                takes.append(1e6 * (time.perf_counter() - started))
                if not taken:
                    refused += 1
                    break
    return {
        "tokens": len(tokens),
        "refused": refused,
        "compile_ms": round(statistics.median(compile_ms), 2),
        "mask_us_cold": spread(cold),
        "mask_us_warm": spread(warm),
        "take_us": spread(takes),
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    ranked = sorted(values)
    found = {"mean": statistics.fmean(ranked), "p50": ranked[len(ranked) // 2], "p99": ranked[len(ranked) * 99 // 100]}
    return {name: round(value, 1) for name, value in (found | {"max": ranked[-1]}).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    tokenizer = load_tokenizer(resolve(args.model, None))
    found: dict[str, dict[str, object]] = {}
    for name, make in LIBRARIES.items():
        try:
            started = time.perf_counter()
            library = make(tokenizer)
        except ImportError as error:
            print(f"{name} is left out: {error}")
            continue
        found[name] = {"tokenizer_ms": round(1e3 * (time.perf_counter() - started), 1)}
        for case, (schema, value) in cases().items():
            found[name][case] = measure(library, tokenizer, schema, value, args.repeats)
            print(name, case, json.dumps(found[name][case]), flush=True)
    if args.json:
        versions = {name: _version(name) for name in found}
        args.json.write_text(json.dumps({"provenance": provenance({}, versions), **found}, indent=2))


def _version(package: str) -> str:
    from importlib.metadata import version

    return version(package)


if __name__ == "__main__":
    main()
