"""Which grammar library is faster? Time to compile a schema and to compute a token mask, llguidance against xgrammar.

Usage: python -m benchmarks.grammar_libraries [--model NAME] [--repeats 5] [--json OUT]

Each library that is installed compiles ten schemas for the model's vocabulary, without its cache, and walks an instance
of each token by token: a mask, then the token. A first walk starts from the freshly compiled grammar (cold), a second
follows with what the library has learned (warm). Compact JSON in the style of `json.dumps` for both. A token that a
library refuses is counted, not hidden.
"""

import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from benchmarks.script import options
from prolepsis.core.config import DEFAULT_MODEL
from prolepsis.core.requests import JSON_STYLE
from prolepsis.engine.models.files.store import resolve
from prolepsis.engine.models.files.tokenizer_files import load_tokenizer
from prolepsis.engine.text.model_tokenizer import ModelTokenizer
from prolepsis.lab.measure.provenance import provenance

Schema = dict[str, object]


def record(required: dict[str, Schema]) -> Schema:
    return {"type": "object", "properties": required, "required": list(required), "additionalProperties": False}


def text(longest: int) -> Schema:
    return {"type": "string", "minLength": 1, "maxLength": longest}


def number(low: int, high: int) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high}


def items(of: Schema, least: int, most: int) -> Schema:
    return {"type": "array", "items": of, "minItems": least, "maxItems": most}


PEOPLE = items(record({"name": text(20), "age": number(0, 120), "city": text(20)}), 6, 6)
USERS = items(
    record({"id": number(1, 99), "username": text(16), "email": text(32), "active": {"type": "boolean"}}), 5, 5
)
_NAMES = (  # noqa: SIM905
    "name city country title author year price stock colour size weight rating status owner email phone street "
    "published tags parts notes amount currency start end kind level score brand model"
).split()
_WORDS = "red green blue small large medium new used open closed low high yes no north south".split()  # noqa: SIM905


def generated(seed: int) -> Schema:
    """Return an object schema of 2 to 5 members, up to two levels deep."""
    return _object(random.Random(seed), depth=0)


def instance(schema: Schema, rng: random.Random) -> object:
    """Return a value that fits a schema of the kinds made here."""
    match schema:
        case {"enum": list() as values}:
            return rng.choice(values)
        case {"type": "boolean"}:
            return rng.random() < 0.5
        case {"type": "integer", "minimum": int() as low, "maximum": int() as high}:
            return rng.randint(low, high)
        case {"type": "string", "maxLength": int() as longest}:
            return " ".join(rng.choices(_WORDS, k=4))[:longest].strip()
        case {"type": "array", "items": dict() as of, "minItems": int() as least, "maxItems": int() as most}:
            return [instance(of, rng) for _ in range(rng.randint(least, most))]
        case {"type": "object", "properties": dict() as members}:
            return {name: instance(of, rng) for name, of in members.items()}
    raise ValueError(f"no instance of {json.dumps(schema)}")


def _object(rng: random.Random, depth: int) -> Schema:
    return record({name: _value(rng, depth + 1) for name in rng.sample(_NAMES, rng.randint(2, 5 - depth))})


def _value(rng: random.Random, depth: int) -> Schema:
    kind = rng.choice(("text", "text", "number", "enum", "boolean", "items", "object"))
    if depth > 2 and kind in ("items", "object"):
        kind = "text"
    match kind:
        case "text":
            return text(rng.choice((8, 16, 32)))
        case "number":
            return number(0, rng.choice((9, 100, 2030)))
        case "enum":
            return {"enum": sorted(rng.sample(_WORDS, rng.randint(2, 5)))}
        case "boolean":
            return {"type": "boolean"}
        case "items":
            return items(_value(rng, depth + 1), 1, rng.randint(2, 4))
        case _:
            return _object(rng, depth)


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
    found["6 people"] = PEOPLE, instance(PEOPLE, random.Random(0))
    found["5 users"] = USERS, instance(USERS, random.Random(0))
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
    args = options(__doc__, model=DEFAULT_MODEL, repeats=5)
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
