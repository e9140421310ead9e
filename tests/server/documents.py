"""Replies read as their declared types."""

from typing import TypeVar

from pydantic import TypeAdapter

Shape = TypeVar("Shape")


def read(shape: type[Shape], document: object) -> Shape:
    """Return a reply as its type; it has all fields of the type and no others."""
    adapter = TypeAdapter(shape)
    value = adapter.validate_python(document)
    assert adapter.dump_python(value, mode="json") == document
    return value
