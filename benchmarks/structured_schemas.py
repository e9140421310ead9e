"""JSON schemas for the benchmarks of structured output: hand-made ones, and generated ones with instances of them.

All are bounded (lengths, numbers of items, ranges), so that an answer has an end.
"""

import json
import random

Schema = dict[str, object]


def record(required: dict[str, Schema]) -> Schema:
    return {"type": "object", "properties": required, "required": list(required), "additionalProperties": False}


def text(longest: int) -> Schema:
    return {"type": "string", "minLength": 1, "maxLength": longest}


def number(low: int, high: int) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high}


def items(of: Schema, least: int, most: int) -> Schema:
    return {"type": "array", "items": of, "minItems": least, "maxItems": most}


DATE: Schema = {"type": "string", "pattern": "^20[0-9]{2}-[01][0-9]-[0-3][0-9]$"}
PERSON = record({"name": text(20), "age": number(0, 120), "city": text(20)})
ORDER = record(
    {
        "order_id": number(1000, 1999),
        "customer": text(20),
        "status": {"enum": ["pending", "shipped", "delivered"]},
        "total": {"type": "string", "pattern": "^[0-9]{1,4}\\.[0-9]{2}$"},
    }
)
BY_PROMPT: dict[str, Schema] = {
    "json-0": items(PERSON, 6, 6),
    "json-1": record(
        {
            "title": text(40),
            "date": DATE,
            "time": {"type": "string", "pattern": "^[012][0-9]:[0-5][0-9]$"},
            "place": text(40),
            "attendees": items(text(24), 1, 6),
        }
    ),
    "json-2": items(ORDER, 3, 8),
    "json-3": items(
        record({"id": number(1, 99), "username": text(16), "email": text(32), "active": {"type": "boolean"}}), 5, 5
    ),
    "json-4": record(
        {
            "server": record({"host": text(16), "port": number(1, 65535), "workers": number(1, 64)}),
            "database": record({"host": text(16), "port": number(1, 65535), "name": text(16), "pool": number(1, 100)}),
            "logging": record({"level": {"enum": ["debug", "info", "warning", "error"]}, "file": text(40)}),
        }
    ),
}
OTHER = items(record({"title": text(40), "details": items(text(60), 1, 4)}), 1, 6)
"""For a JSON prompt that nobody wrote a schema for."""

_NAMES = (  # noqa: SIM905
    "name city country title author year price stock colour size weight rating status owner email phone street "
    "published tags parts notes amount currency start end kind level score brand model"
).split()
_WORDS = "red green blue small large medium new used open closed low high yes no north south".split()  # noqa: SIM905


def generated(seed: int) -> Schema:
    """Return an object schema of 2 to 5 members, up to two levels deep."""
    return _object(random.Random(seed), depth=0)


def instance(schema: Schema, rng: random.Random) -> object:
    """Return a value that fits a schema of the kinds made here, other than patterns."""
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
