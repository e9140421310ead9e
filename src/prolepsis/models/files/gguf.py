"""Reads the GGUF container: metadata and tensors by name, loaded on demand.

Source of the layout: the GGUF specification (ggml, docs/gguf.md), versions 2 and 3, little-endian.
"""

import math
import mmap
import struct
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prolepsis.core.errors import ModelLoadError
from prolepsis.models.files.gguf_config import ARCHITECTURES, gguf_config, refuse_unread, transformers_name
from prolepsis.models.files.stored import BF16, PACKED, OnDemand, StoredMatrix
from prolepsis.models.files.weights import Checkpoint, Config

Value = bool | int | float | str | list["Value"]

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_COUNT = 1 << 28
_MAX_DIMENSIONS = 4
_MAX_DEPTH = 4
"""Arrays in arrays of metadata."""

CONTROL, USER_DEFINED = 3, 4
"""Kinds of tokens in `tokenizer.ggml.token_type`: marks of a conversation, and texts that are always one token."""
_STATED_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
_NAMED_ENDS = frozenset(
    {
        *("</s>", "<eos>", "<|endoftext|>", "<|end_of_text|>", "<end_of_turn>", "<end_of_utterance>", "<EOT>"),
        *("_<EOT>", "[EOT]", "[EOS]", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|return|>", "<|call|>"),
    }
)
"""Control tokens with which models of any family end a text or a turn; source: llama.cpp, `src/llama-vocab.cpp`."""
_ENDS_OF_MESSAGES = {"<|end|>": "<|return|>"}
"""A token that ends a part of a turn only where the vocabulary has the other token."""


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """The place of a tensor in the file; `shape` has the slowest dimension first, as in torch."""

    shape: tuple[int, ...]
    kind: int
    start: int
    size: int


class GgufFile:
    """One open GGUF file: `metadata` by key, `tensors` by name."""

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
            self._refuse_part()
        except (struct.error, UnicodeDecodeError, KeyError, ValueError, OverflowError) as error:
            raise ModelLoadError(f"{path} is not a whole GGUF file: {error} at byte {self._at}") from error

    def text(self, key: str, default: str = "") -> str:
        """Return the string under `key`, or `default` if it is missing."""
        value = self.metadata.get(key, default)
        if not isinstance(value, str):
            raise ModelLoadError(f"{self.path}: {key} is not a string")
        return value

    def integer(self, key: str) -> int | None:
        """Return the integer under `key`, or None if it is missing."""
        value = self.metadata.get(key)
        if value is not None and not isinstance(value, int):
            raise ModelLoadError(f"{self.path}: {key} is {value!r}; expected an integer")
        return value

    def strings(self, key: str) -> list[str]:
        """Return the list of strings under `key`, empty if it is missing."""
        value = self.metadata.get(key, [])
        if not isinstance(value, list):
            raise ModelLoadError(f"{self.path}: {key} is not a list")
        return [str(item) for item in value]

    def integers(self, key: str) -> list[int]:
        """Return the list of integers under `key`, empty if it is missing."""
        return [int(number) for number in self._numbers(key)]

    def floats(self, key: str) -> list[float]:
        """Return the list of numbers under `key`, empty if it is missing."""
        return [float(number) for number in self._numbers(key)]

    def _numbers(self, key: str) -> list[int | float]:
        value = self.metadata.get(key, [])
        numbers = [item for item in value if isinstance(item, int | float)] if isinstance(value, list) else []
        if not isinstance(value, list) or len(numbers) < len(value):
            raise ModelLoadError(f"{self.path}: {key} is not a list of numbers")
        return numbers

    def end_tokens(self) -> tuple[int, ...]:
        """Return the tokens that end a text: those that the file states, and control tokens that end one by name.

        Files often state one of them only: the end of a document, or that of a turn.
        """
        stated = [self.integer(f"tokenizer.ggml.{key}") for key in _STATED_ENDS]
        rows = zip(self.strings("tokenizer.ggml.tokens"), self.integers("tokenizer.ggml.token_type"), strict=False)
        control = {token: i for i, (token, kind) in enumerate(rows) if kind == CONTROL}
        named = [
            i for token, i in control.items() if token in _NAMED_ENDS and _ENDS_OF_MESSAGES.get(token) not in control
        ]
        return tuple(dict.fromkeys([*(end for end in stated if end is not None), *named]))

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return the bytes of tensor `name`, read-only, where they lie in the file."""
        entry = self.tensors[name]
        return np.frombuffer(self._data, dtype=np.uint8, count=entry.size, offset=entry.start)

    def load(self, name: str) -> Tensor:
        """Return tensor `name`, dequantised to float32."""
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        entry = self.tensors[name]
        raw = self.raw(name)
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

    def _refuse_part(self) -> None:
        count = self.metadata.get("split.count", 1)
        if isinstance(count, int) and count > 1:
            raise ModelLoadError(
                f"{self.path} is one of {count} parts of a split file, which are not read; join them first: "
                "llama-gguf-split --merge FIRST_PART WHOLE_FILE"
            )

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
        size = math.prod(shape) // block * block_bytes
        if start + size > len(self._data):
            raise ValueError(f"tensor {name!r} ends at byte {start + size} of {len(self._data)}: the file is cut off")
        return GgufTensor(shape, kind, start, size)

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
            return self._strings(count)
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

    def _strings(self, count: int) -> list[Value]:
        """Read `count` strings in one loop: a vocabulary has hundreds of thousands."""
        data, at, length_at = self._data, self._at, struct.Struct("<Q").unpack_from
        found: list[Value] = []
        for _ in range(count):
            (length,) = length_at(data, at)
            start, at = at + 8, at + 8 + length
            found.append(data[start:at].decode("utf-8", errors="replace"))
        if at > len(data):
            raise ValueError("the file is cut off")
        self._at = at
        return found

    def _take(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count]
        if len(taken) < count:
            raise ValueError("the file is cut off")
        self._at += count
        return taken


def open_gguf(file: GgufFile, dtype: torch.dtype) -> Checkpoint:
    """Return configuration and tensors of a GGUF file; raises `ModelLoadError` for an unknown architecture."""
    architecture = file.text("general.architecture")
    if architecture in ARCHITECTURES and not any("_exps" in name for name in file.tensors):
        config = gguf_config(file)
        refuse_unread(file)
        weights = GgufWeights(file, config, dtype)
        return Checkpoint(config, weights.tensors, file.path, weights.matrices)
    return _other(file.path, architecture, dtype)


class GgufWeights:
    """The tensors of a GGUF file of a known family under transformers names, read at each access."""

    def __init__(self, file: GgufFile, config: Config, dtype: torch.dtype) -> None:
        self._file = file
        self._dtype = dtype
        architecture = ARCHITECTURES[file.text("general.architecture")]
        self._names = {to: name for name in file.tensors if (to := transformers_name(name, architecture)) is not None}
        self._norm_offset = architecture.norm_offset
        self._heads: dict[str, int] = {}
        if architecture.permuted:
            self._heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """All of them, dequantised."""
        return OnDemand(self._names, self.tensor)

    @property
    def matrices(self) -> Mapping[str, StoredMatrix]:
        """Those that the native forward reads as they are."""
        kinds = {to: self._file.tensors[name].kind for to, name in self._names.items()}
        return OnDemand([name for name, kind in kinds.items() if kind in PACKED and kind != BF16], self.stored)

    def tensor(self, name: str) -> Tensor:
        """Return tensor `name`, dequantised."""
        found = self._in_order(name, self._file.load(self._names[name]))
        return (found - self._norm_offset if name.endswith("norm.weight") else found).to(self._dtype)

    def stored(self, name: str) -> StoredMatrix:
        """Return matrix `name` with the bytes of the file, where they lie in it: nothing may write to them."""
        entry = self._file.tensors[self._names[name]]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch has no tensors that cannot be written
            rows = torch.from_numpy(self._file.raw(self._names[name]).reshape(entry.shape[0], -1))
        return StoredMatrix(self._in_order(name, rows), entry.kind)

    def _in_order(self, name: str, rows: Tensor) -> Tensor:
        heads = self._heads.get(name.split(".")[-2])
        return rows if heads is None else unpermute(rows, heads)


def unpermute(tensor: Tensor, heads: int) -> Tensor:
    """Undo llama.cpp's interleaving of rotary pairs: row (2i + j) of a head goes to row (j * d / 2 + i)."""
    half = tensor.shape[0] // heads // 2
    return tensor.view(heads, half, 2, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)


def _other(path: Path, architecture: str, dtype: torch.dtype) -> Checkpoint:
    """Let transformers read architectures outside the known families; all tensors are loaded at once."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    try:
        config = AutoConfig.from_pretrained(str(path.parent), gguf_file=path.name)
        with torch.device("meta"):  # for the names of its parameters only
            names = AutoModelForCausalLM.from_config(config)
        found = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=names)["tensors"]
    except Exception as error:  # transformers raises many kinds of errors for such files; callers get one
        known = ", ".join(ARCHITECTURES)
        raise ModelLoadError(
            f"{path}: architecture {architecture!r}, which transformers cannot read: {error}; read here: {known}"
        ) from error
    return Checkpoint(config, {name: torch.as_tensor(tensor).to(dtype) for name, tensor in found.items()}, path)
