"""Counts the bytes of weights of a model: those that a pass reads, and those that are kept in memory."""

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from prolepsis.core.errors import ModelLoadError

if TYPE_CHECKING:
    from prolepsis.models.files.weights import ModelSource

EMBEDDINGS = ("token_embd.weight", "model.embed_tokens.weight")
OUTPUTS = ("output.weight", "lm_head.weight")
BYTES_OF = {"bf16": 2.0, "q8": 34 / 32, "q4": 20 / 32}
"""Bytes of one weight, by the setting `weights`."""


@dataclass(frozen=True, slots=True)
class _Stored:
    """A tensor in a file."""

    num_bytes: int
    num_weights: int


def bytes_per_pass(path: Path) -> int:
    """Return the bytes of the weights that a pass of the model at `path` reads, for any number of rows.

    All of them, but of an embedding that is not the output head too only the rows of its tokens, which do not count.
    Experts of a mixture are counted as if all were read. Raises `ModelLoadError` for files that cannot be read.
    """
    tensors = _tensors(path)
    skipped = EMBEDDINGS if any(name in tensors for name in OUTPUTS) else ()
    return sum(tensor.num_bytes for name, tensor in tensors.items() if name not in skipped)


def least_loaded_bytes(source: "ModelSource", weights: str) -> int:
    """Return the least memory that the weights of a model take under the setting `weights`.

    A forward that cannot keep quantised weights takes more. Raises `ModelLoadError` for files that cannot be read.
    """
    tensors = _tensors(source).values()
    if weights in BYTES_OF:
        return math.ceil(BYTES_OF[weights] * sum(tensor.num_weights for tensor in tensors))
    return sum(min(tensor.num_bytes, 2 * tensor.num_weights) for tensor in tensors)


def _tensors(source: "ModelSource") -> dict[str, _Stored]:
    if isinstance(source, Path) and not source.is_file():
        return _of_folder(source)
    from prolepsis.models.files.gguf import GgufFile

    file = GgufFile(source) if isinstance(source, Path) else source
    return {name: _Stored(tensor.size, math.prod(tensor.shape)) for name, tensor in file.tensors.items()}


def _of_folder(folder: Path) -> dict[str, _Stored]:
    tensors: dict[str, _Stored] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= _of_safetensors(file)
    if not tensors:
        raise ModelLoadError(f"{folder} has no safetensors files")
    return tensors


def _of_safetensors(file: Path) -> dict[str, _Stored]:
    """Read the header: its length in 8 bytes, then JSON with the first and last byte of each tensor."""
    try:
        with file.open("rb") as data:
            (length,) = struct.unpack("<Q", data.read(8))
            header = json.loads(data.read(length))
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        return {name: _stored(entry["data_offsets"], entry["shape"]) for name, entry in entries.items()}
    except (OSError, struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelLoadError(f"{file} is not a whole safetensors file: {error!r}") from error


def _stored(place: list[int], shape: list[int]) -> _Stored:
    start, end = place
    return _Stored(int(end) - int(start), math.prod(shape))
