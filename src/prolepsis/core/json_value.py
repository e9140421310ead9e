"""Frozen values that are stored as JSON."""

from functools import cache
from typing import Any, Self

from pydantic import TypeAdapter


class JsonValue:
    """Base of dataclasses whose fields pydantic can write and read."""

    __slots__ = ()

    @classmethod
    @cache
    def _adapter(cls) -> TypeAdapter[Any]:
        return TypeAdapter(cls)

    def to_json(self) -> str:
        """Return the value as JSON."""
        return self._adapter().dump_json(self).decode()

    @classmethod
    def from_json(cls, text: bytes | str) -> Self:
        """Return the stored value; raises pydantic's ValidationError for any other text."""
        value: Self = cls._adapter().validate_json(text)
        return value
