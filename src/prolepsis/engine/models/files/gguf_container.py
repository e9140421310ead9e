"""Reads one GGUF container: metadata and the places of tensors.

Source of the layout: the GGUF specification (ggml, docs/gguf.md), versions 2 and 3, little-endian.
"""

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from prolepsis.core.errors import ModelLoadError

Value = bool | int | float | str | list["Value"]

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_COUNT = 1 << 28
_MAX_DIMENSIONS = 4
_MAX_DEPTH = 4  # arrays in arrays of metadata


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """The place of a tensor in its file; `shape` has the slowest dimension first, as in torch."""

    shape: tuple[int, ...]
    kind: int
    start: int
    size: int


class GgufContainer:
    """One open file: `metadata` by key, `tensors` by name."""

    def __init__(self, path: Path) -> None:
        """Read header, metadata and tensor table; raises `ModelLoadError` if the file is not a whole GGUF file."""
        self.path = path
        self.metadata: dict[str, Value] = {}
        self.tensors: dict[str, GgufTensor] = {}
        try:
            with path.open("rb") as file:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise ModelLoadError(f"{path} cannot be read: {error}") from error
        self._at = 0
        try:
            self._read_header()
        except (struct.error, UnicodeDecodeError, KeyError, ValueError, OverflowError) as error:
            raise ModelLoadError(f"{path} is not a whole GGUF file: {error} at byte {self._at}") from error

    def raw(self, name: str) -> NDArray[np.uint8]:
        entry = self.tensors[name]
        return np.frombuffer(self._data, dtype=np.uint8, count=entry.size, offset=entry.start)

    def _read_header(self) -> None:
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        magic, version = self._take(4), self._number("I")
        if magic != b"GGUF":
            raise ValueError(f"starts with {magic!r} instead of b'GGUF'; allowed too: a folder with config.json;")
        if version not in (2, 3):
            raise ValueError(f"version {version}; allowed: 2 and 3")
        num_tensors, num_values = self._count(), self._count()
        for _ in range(num_values):
            key = self._string()
            if key in self.metadata:
                raise ValueError(f"the key {key!r} is there twice")
            self.metadata[key] = self._value(int(self._number("I")))
        table = [self._tensor_entry() for _ in range(num_tensors)]
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0:
            raise ValueError(f"alignment {alignment!r}")
        base = -(-self._at // alignment) * alignment
        for name, shape, kind, offset in table:
            if name in self.tensors:
                raise ValueError(f"the tensor {name!r} is there twice")
            start = base + offset
            block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
            if not all(shape):  # with a dimension of 0 any other would fit into the file
                raise ValueError(f"tensor {name!r} has the shape {list(shape)}; allowed: dimensions of 1 and more")
            if not shape or shape[-1] % block:
                raise ValueError(f"tensor {name!r} of shape {list(shape)} is not made of blocks of {block}")
            size = math.prod(shape) // block * block_bytes
            if start + size > len(self._data):
                raise ValueError(
                    f"tensor {name!r} ends at byte {start + size} of {len(self._data)}: the file is cut off"
                )
            self.tensors[name] = GgufTensor(shape, kind, start, size)

    def _tensor_entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        count = int(self._number("I"))
        if count > _MAX_DIMENSIONS:
            raise ValueError(f"tensor {name!r} has {count} dimensions; allowed: up to {_MAX_DIMENSIONS}")
        dimensions = [int(self._number("Q")) for _ in range(count)]
        return name, tuple(reversed(dimensions)), int(self._number("I")), int(self._number("Q"))

    def _value(self, kind: int, depth: int = 0) -> Value:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._number(_SCALARS[kind])
        item, count = int(self._number("I")), self._count()
        if item == _STRING:
            # in one loop: a vocabulary has hundreds of thousands
            data, at, length_at = self._data, self._at, struct.Struct("<Q").unpack_from
            values: list[Value] = []
            for _ in range(count):
                (length,) = length_at(data, at)
                start, at = at + 8, at + 8 + length
                values.append(data[start:at].decode("utf-8", errors="replace"))
            if at > len(data):
                raise ValueError("the file is cut off")
            self._at = at
            return values
        if item == _ARRAY:
            if depth == _MAX_DEPTH:
                raise ValueError(f"arrays nested deeper than {_MAX_DEPTH} levels")
            return [self._value(item, depth + 1) for _ in range(count)]
        code = _SCALARS[item]
        return list(struct.unpack(f"<{count}{code}", self._take(count * struct.calcsize(f"<{code}"))))

    def _number(self, code: str) -> bool | int | float:
        (value,) = struct.unpack(f"<{code}", self._take(struct.calcsize(f"<{code}")))
        assert isinstance(value, bool | int | float)
        return value

    def _count(self) -> int:
        count = int(self._number("Q"))
        if count > _MAX_COUNT:
            raise ValueError(f"a count of {count}")
        return count

    def _string(self) -> str:
        return self._take(self._count()).decode("utf-8", errors="replace")

    def _take(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count]
        if len(taken) < count:
            raise ValueError("the file is cut off")
        self._at += count
        return taken
