"""Values as JSON: dataclasses that are stored, and canonical texts and digests of plain values."""

import json
from functools import cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Self

from pydantic import TypeAdapter, computed_field

if TYPE_CHECKING:
    computed = property  # type checkers know no properties with further decorators
else:
    computed = computed_field
"""A property that is a field of the value as JSON."""


class JsonValue:
    """Base of dataclasses whose fields pydantic can write and read."""

    __slots__ = ()

    @classmethod
    @cache
    def _adapter(cls) -> TypeAdapter[Any]:
        return TypeAdapter(cls)

    def to_json(self) -> str:
        return self._adapter().dump_json(self).decode()

    @classmethod
    def from_json(cls, text: bytes | str) -> Self:
        """Return the stored value; raises pydantic's ValidationError for any other text."""
        value: Self = cls._adapter().validate_json(text)
        return value


def canonical(value: object) -> str:
    """Return canonical JSON: keys sorted, no spaces, ASCII; raises ValueError for values that JSON cannot express."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def digest_of(value: object) -> str:
    """Return the SHA-256 of the canonical JSON, hexadecimal."""
    return sha256(canonical(value).encode()).hexdigest()


def whole_numbers(text: str | None) -> tuple[int, ...]:
    """Return the numbers in a JSON list; of any other text a number that nothing has, so that no digest matches."""
    try:
        value = json.loads(text or "")
    except (ValueError, RecursionError):
        return (0,)
    return tuple(value) if isinstance(value, list) and all(type(item) is int for item in value) else (0,)
