"""Reads the GGUF container: metadata and tensors by name, without loading what is not asked for.

Source of the layout: the GGUF specification (ggml, docs/gguf.md), versions 2 and 3, little-endian.
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from prolepsis.core.errors import ModelLoadError

Value = bool | int | float | str | list["Value"]

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_COUNT = 1 << 28


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where a tensor lies in the file; `shape` has the slowest dimension first, as torch has it."""

    shape: tuple[int, ...]
    kind: int
    start: int
    size: int


class GgufFile:
    """One open GGUF file: `metadata` by key, `tensors` by name."""

    def __init__(self, path: Path) -> None:
        """Read header, metadata and tensor table; raises `ModelLoadError` where the file is not a whole GGUF."""
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

    def text(self, key: str, default: str = "") -> str:
        """Return the string under `key`, or `default` where it is missing."""
        value = self.metadata.get(key, default)
        if not isinstance(value, str):
            raise ModelLoadError(f"{self.path}: {key} is not a string")
        return value

    def integer(self, key: str) -> int | None:
        """Return the integer under `key`, or None where it is missing."""
        value = self.metadata.get(key)
        if value is not None and not isinstance(value, int):
            raise ModelLoadError(f"{self.path}: {key} is {value!r}; expected an integer")
        return value

    def strings(self, key: str) -> list[str]:
        """Return the list of strings under `key`, empty where it is missing."""
        value = self.metadata.get(key, [])
        if not isinstance(value, list):
            raise ModelLoadError(f"{self.path}: {key} is not a list")
        return [str(item) for item in value]

    def load(self, name: str) -> Tensor:
        """Return tensor `name`, dequantised to float32."""
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        entry = self.tensors[name]
        raw = np.frombuffer(self._data, dtype=np.uint8, count=entry.size, offset=entry.start)
        kind = GGMLQuantizationType(entry.kind)
        if kind == GGMLQuantizationType.F32:
            return torch.from_numpy(raw.view(np.float32).reshape(entry.shape).copy())
        if kind == GGMLQuantizationType.F16:
            return torch.from_numpy(raw.view(np.float16).reshape(entry.shape).astype(np.float32))
        try:
            values = dequantize(raw.reshape(*entry.shape[:-1], -1), kind)
        except NotImplementedError as error:
            raise ModelLoadError(f"{self.path}: {name} is of type {kind.name}, which gguf cannot dequantise") from error
        return torch.from_numpy(np.ascontiguousarray(values).reshape(entry.shape))

    def _read_header(self) -> None:
        magic, version = self._take(4), self._number("I")
        if magic != b"GGUF":
            raise ValueError(f"starts with {magic!r} instead of b'GGUF'")
        if version not in (2, 3):
            raise ValueError(f"version {version}; allowed: 2 and 3")
        num_tensors, num_values = self._count(), self._count()
        for _ in range(num_values):
            key = self._string()
            self.metadata[key] = self._value(int(self._number("I")))
        table = [self._tensor_entry() for _ in range(num_tensors)]
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0:
            raise ValueError(f"alignment {alignment!r}")
        base = -(-self._at // alignment) * alignment
        for name, shape, kind, offset in table:
            self.tensors[name] = self._place(name, shape, kind, base + offset)

    def _place(self, name: str, shape: tuple[int, ...], kind: int, start: int) -> GgufTensor:
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        if not shape or shape[-1] % block:
            raise ValueError(f"tensor {name!r} of shape {list(shape)} is not made of blocks of {block}")
        size = int(np.prod(shape, dtype=np.int64)) // block * block_bytes
        if start + size > len(self._data):
            raise ValueError(f"tensor {name!r} ends at byte {start + size} of {len(self._data)}: the file is cut off")
        return GgufTensor(shape, kind, start, size)

    def _tensor_entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        dimensions = [int(self._number("Q")) for _ in range(int(self._number("I")))]
        return name, tuple(reversed(dimensions)), int(self._number("I")), int(self._number("Q"))

    def _value(self, kind: int) -> Value:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._number(_SCALARS[kind])
        item, count = int(self._number("I")), self._count()
        if item in (_STRING, _ARRAY):
            return [self._value(item) for _ in range(count)]
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
