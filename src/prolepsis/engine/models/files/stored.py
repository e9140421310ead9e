"""Weights as a file stores them: matrices in ggml's block formats, and how a matrix is brought to one.

Source of the formats: ggml (ggml-common.h), read and written here by the package gguf.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import numpy as np
import structlog
import torch
from torch import Tensor

from prolepsis.core.files import exclusive, replacing

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType

Value = TypeVar("Value")


class LazyMapping(Mapping[str, Value]):
    """The values of `names`, each read when it is taken; asking whether a name is there reads nothing.

    `Mapping` would read a value to find out whether it is there, so each matrix of a model would be read twice.
    """

    def __init__(self, names: Collection[str], read: Callable[[str], Value]) -> None:
        self._names = dict.fromkeys(names)
        self._read = read

    def __getitem__(self, name: str) -> Value:
        if name not in self._names:
            raise KeyError(name)
        return self._read(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


log = structlog.get_logger(__name__)

BF16: Final = 30
Q4_1: Final = 3
Q8_0: Final = 8
PACKED: Final = {
    2: "q4_0",
    3: "q4_1",
    6: "q5_0",
    7: "q5_1",
    8: "q8_0",
    12: "q4_k",
    13: "q5_k",
    14: "q6_k",
    BF16: "bf16",
}
"""Formats that the native forward reads as they are, by ggml's number."""


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """A matrix [N, K] in one of the formats of `PACKED`."""

    data: Tensor  # bf16: [N, K]; other formats: uint8 [N, bytes of a row]
    kind: int = BF16  # ggml's number of the format

    @property
    def shape(self) -> tuple[int, int]:
        rows, width = self.data.shape
        if self.kind == BF16:
            return rows, width
        block, block_bytes = _block(self.kind)
        return rows, width // block_bytes * block

    def values(self) -> Tensor:  # [N, K] float32
        if self.kind == BF16:
            return self.data.float()
        from gguf.quants import dequantize

        return torch.from_numpy(dequantize(self.data.numpy(), _type(self.kind)))

    def __getitem__(self, rows: slice) -> "StoredMatrix":
        return StoredMatrix(self.data[rows], self.kind)


def quantised(tensors: Mapping[str, Tensor], kind: int, cache: Path) -> Mapping[str, StoredMatrix]:
    """Return a model's matrices in format `kind`, embedding and output head in 8 bits, from the file `cache`.

    The file is written first if it is missing. Matrices that do not fit the format are left out.
    """
    from safetensors import safe_open
    from safetensors.torch import save_file

    with exclusive(cache.with_suffix(".lock")):
        if not cache.exists():
            log.warning("quantising_weights", to=PACKED[kind], file=str(cache))
            started = time.monotonic()
            packed = {}
            for name in (name for name in tensors if name.endswith(".weight") and "norm" not in name):
                matrix = quantise(tensors[name], kind if ".layers." in name else Q8_0)
                if matrix.kind != BF16:
                    packed[name] = matrix
            kinds = {name: str(matrix.kind) for name, matrix in packed.items()}
            with replacing(cache) as part:
                save_file({name: matrix.data for name, matrix in packed.items()}, part, kinds)
            log.warning("quantised_weights", seconds=round(time.monotonic() - started, 1))
    matrices = cast(Any, safe_open)(str(cache), framework="pt")
    stored = {name: int(number) for name, number in matrices.metadata().items()}
    return LazyMapping(stored, lambda name: StoredMatrix(matrices.get_tensor(name), stored[name]))


def quantise(weight: Tensor, kind: int) -> StoredMatrix:
    """Return a float matrix [N, K] in format `kind`, or in bf16 if K is no multiple of the format's block."""
    if kind == BF16 or weight.shape[1] % _block(kind)[0]:
        return StoredMatrix(weight.bfloat16().contiguous())
    from gguf.quants import quantize

    rows = np.ascontiguousarray(weight.float().numpy())
    return StoredMatrix(torch.from_numpy(quantize(rows, _type(kind))), kind)


def _block(kind: int) -> tuple[int, int]:
    from gguf.constants import GGML_QUANT_SIZES

    weights, size = GGML_QUANT_SIZES[_type(kind)]
    return int(weights), int(size)


def _type(kind: int) -> "GGMLQuantizationType":
    from gguf.constants import GGMLQuantizationType

    return GGMLQuantizationType(kind)
