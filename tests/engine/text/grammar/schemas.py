"""Schemas made by a seed: of every keyword that is kept, nested into each other, some without any value."""

import random
from collections.abc import Callable

from prolepsis.core.requests import GrammarSpec
from tests.engine.text.grammar.tiny import json_schema

Schema = dict[str, object]
_NAMES = ("a", "b", "name", "größe", "名前", 'quo"ted', "x/y~z", "with space", "😀", "$id_", "-", "1")
_TEXTS = ("", "red", "Zoë", "日本", 'say "hi"', "back\\slash", "line\nbreak", "tab\t", "👋🏽", "null", "1e9")
_PATTERNS = ("^[a-z]{2,6}$", "^(ab|cd)+$", "[0-9]", "^\\d{3}-\\d{4}$", "^[^ ]{1,8}$", "^é{1,3}$", "", "^[A-Z]\\w*$")
_NAME_PATTERNS = ("^a$", "^(a|b|c)$", "^x_", "^[a-z]{3}$", "[0-9]$", "^größe$", ".")
_FORMATS = ("date", "time", "date-time", "duration", "email", "ipv4", "ipv6", "uuid", "uri", "hostname")
_LARGE = (2**31, 2**53, 2**53 + 1, 2**60, 2**63 - 1, 2**63, 2**64, 10**30)


def generated(seed: int) -> GrammarSpec:
    """Return the schema of a seed; about one in four holds something that must be refused."""
    rng = random.Random(seed)
    shared = [f"s{i}" for i in range(rng.randint(0, 3))]
    made = _Maker(rng, shared)
    schema = made.any(0)
    if shared:
        schema = {"$defs": {name: made.any(1) for name in shared}, **schema}
    if rng.random() < 0.1:
        schema = {**schema, "x-guidance": {"lenient": True, "coerce_one_of": True, "whitespace_flexible": True}}
    return json_schema(schema)


class _Maker:
    def __init__(self, rng: random.Random, shared: list[str]) -> None:
        self._rng = rng
        self._shared = shared

    def any(self, depth: int) -> Schema:
        kinds: list[Callable[[int], Schema]] = [self._text, self._number, self._whole, self._constant, self._format]
        if depth < 3:
            kinds += [self._object, self._object, self._named, self._array, self._tuple, self._union, self._joined]
        if self._shared:
            kinds += [self._reference, self._reference]
        return self._rng.choice(kinds)(depth)

    def _text(self, _: int) -> Schema:
        rng, schema = self._rng, Schema(type="string")
        if rng.random() < 0.5:
            schema["pattern"] = rng.choice(_PATTERNS)
        if rng.random() < 0.4:
            schema["minLength"] = rng.randint(0, 4)
        if rng.random() < 0.5:
            schema["maxLength"] = rng.randint(3, 12)
        return schema

    def _format(self, _: int) -> Schema:
        return {"type": "string", "format": self._rng.choice(_FORMATS)}

    def _bounds(self, schema: Schema, of: Callable[[], float]) -> Schema:
        rng = self._rng
        low, high = sorted((of(), of()))
        if rng.random() < 0.6:
            schema[rng.choice(("minimum", "exclusiveMinimum"))] = low
        if rng.random() < 0.6:
            schema[rng.choice(("maximum", "exclusiveMaximum"))] = high
        return schema

    def _whole(self, _: int) -> Schema:
        rng = self._rng
        schema = Schema(type=rng.choice(("integer", ["integer", "null"])))
        if rng.random() < 0.3:
            schema["multipleOf"] = rng.choice((1, 2, 5, 7, 100))
        large = [*_LARGE, *(-value for value in _LARGE)]
        wide = rng.random() < 0.08
        return self._bounds(schema, lambda: rng.choice(large) if wide else rng.randint(-2000, 2000))

    def _number(self, _: int) -> Schema:
        rng, schema = self._rng, Schema(type="number")
        if rng.random() < 0.2:
            schema["multipleOf"] = rng.choice((0.5, 0.25, 3))
        return self._bounds(schema, lambda: rng.choice((0, 1, -1, 0.5, -2.75, 1e-3, 12345.678, 1e6, -1e15)))

    def _constant(self, depth: int) -> Schema:
        rng = self._rng
        values: list[object] = [*_TEXTS, 0, -1, 1.5, 2**53, None, True, [1, "a"], {"a": [None]}, {"größe": 1}]
        return {"const": rng.choice(values)} if rng.random() < 0.4 else {"enum": rng.sample(values, rng.randint(1, 5))}

    def _object(self, depth: int) -> Schema:
        rng = self._rng
        names = rng.sample(_NAMES, rng.randint(0, 4))
        schema = Schema(type="object", properties={name: self.any(depth + 1) for name in names})
        if rng.random() < 0.7:
            schema["required"] = rng.sample(names, rng.randint(0, len(names)))
        if rng.random() < 0.7:
            schema["additionalProperties"] = rng.choice((False, False, True, self.any(depth + 1)))
        if rng.random() < 0.1:
            schema["minProperties"] = rng.choice((0, 1, 1, 2))
        return schema

    def _named(self, depth: int) -> Schema:
        rng = self._rng
        patterns = rng.sample(_NAME_PATTERNS, rng.choice((1, 1, 1, 2)))
        return {
            **self._object(depth + 1),
            "patternProperties": {pattern: self.any(depth + 2) for pattern in patterns},
            "additionalProperties": rng.choice((False, False, True)),
        }

    def _array(self, depth: int) -> Schema:
        rng, schema = self._rng, Schema(type="array", items=self.any(depth + 1))
        if rng.random() < 0.5:
            schema["minItems"] = rng.randint(0, 3)
        if rng.random() < 0.6:
            schema["maxItems"] = rng.randint(2, 4)
        return schema

    def _tuple(self, depth: int) -> Schema:
        rng = self._rng
        first = [self.any(depth + 1) for _ in range(rng.randint(1, 3))]
        return {"type": "array", "prefixItems": first, "items": rng.choice((False, True, self.any(depth + 1)))}

    def _union(self, depth: int) -> Schema:
        rng = self._rng
        return {
            rng.choice(("anyOf", "anyOf", "anyOf", "oneOf")): [self.any(depth + 1) for _ in range(rng.randint(1, 3))]
        }

    def _joined(self, depth: int) -> Schema:
        rng = self._rng
        base = self._rng.choice((self._object, self._whole, self._text, self._array))
        return {"allOf": [base(depth + 1) for _ in range(rng.randint(1, 2))]}

    def _reference(self, _: int) -> Schema:
        return {"$ref": self._rng.choice(["#", *(f"#/$defs/{name}" for name in self._shared)])}
