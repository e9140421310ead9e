"""A model in GGUF: metadata and tensors by name, loaded on demand, from one file or from the parts that hold it.

llama.cpp's `gguf-split` cuts a file into parts: the first holds the metadata; each says its number, how many there are,
and how many tensors all have.
"""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prolepsis.core.errors import ModelLoadError
from prolepsis.engine.models.files.gguf_container import GgufContainer, GgufTensor, Value
from prolepsis.engine.text.named_tokens import FillMarks, named_ends

T = TypeVar("T")
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""Kinds of tokens in `tokenizer.ggml.token_type`: CONTROL marks a conversation, USER_DEFINED is always one token."""
LARGEST_SIZE = 1 << 24  # no size of a model is beyond it; a file that says so is broken
_STATED_ENDS = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
_NO_TOKEN = (-1, 2**32 - 1)  # ids with which some files say that there is none
_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE | re.DOTALL)
_COUNT, _NUMBER, _TENSORS = "split.count", "split.no", "split.tensors.count"
_OWN = frozenset({_NUMBER})  # metadata that differ between parts of one model


class GgufFile:
    """A model in GGUF: `metadata` by key, `tensors` by name, whether they lie in one file or in several."""

    def __init__(self, path: Path) -> None:
        """Read the headers of the file and, if it is a part of a model, of the other parts.

        Raises `ModelLoadError` for a file that is not whole, and for parts that are missing or not of one model.
        """
        self._containers = open_parts(path)
        self.path = self._containers[0].path  # the file, or the first part
        self.metadata: dict[str, Value] = self._containers[0].metadata
        self._homes = {name: container for container in self._containers for name in container.tensors}
        self.tensors: dict[str, GgufTensor] = {name: home.tensors[name] for name, home in self._homes.items()}

    @property
    def files(self) -> list[Path]:
        return [container.path for container in self._containers]

    @property
    def is_split(self) -> bool:
        return len(self._containers) > 1

    def text(self, key: str, default: str = "") -> str:
        value = self.metadata.get(key, default)
        if not isinstance(value, str):
            raise ModelLoadError(f"{self.path}: {key} is not a string")
        return value

    def integer(self, key: str) -> int | None:
        value = self.metadata.get(key)
        if value is not None and not isinstance(value, int):
            raise ModelLoadError(f"{self.path}: {key} is {value!r}; expected an integer")
        return value

    def strings(self, key: str) -> list[str]:
        return self._listed(key, (str,), "strings")

    def integers(self, key: str) -> list[int]:
        return self._listed(key, (int,), "integers")

    def floats(self, key: str) -> list[float]:
        return list(map(float, self._listed(key, (int, float), "numbers")))

    def _listed(self, key: str, kinds: tuple[type[T], ...], what: str) -> list[T]:
        value = self.metadata.get(key, [])
        items: list[T] = [item for item in value if isinstance(item, kinds)] if isinstance(value, list) else []
        if not isinstance(value, list) or len(items) < len(value):
            raise ModelLoadError(f"{self.path}: {key} is not a list of {what}")
        return items

    def token(self, name: str) -> int | None:
        """Return the id that the file states for a token such as "bos", None if there is none."""
        token = self.integer(f"tokenizer.ggml.{name}_token_id")
        return None if token in _NO_TOKEN else token

    def end_tokens(self) -> tuple[int, ...]:
        """Return the tokens that end a text, by the file's statement or by their name."""
        stated = [self.token(name) for name in _STATED_ENDS]
        rows = zip(self.strings("tokenizer.ggml.tokens"), self.integers("tokenizer.ggml.token_type"), strict=False)
        added: dict[int, dict[str, int]] = {CONTROL: {}, USER_DEFINED: {}}
        for i, (token, kind) in enumerate(rows):
            if kind in added:
                added[kind][token] = i
        named = named_ends(added[CONTROL], added[USER_DEFINED])
        return tuple(dict.fromkeys([*(end for end in stated if end is not None), *named]))

    def fill_marks(self) -> FillMarks | None:
        """Return the marks for filling the middle of a text, None unless the file states all of them."""
        before, after, middle = (self.token(name) for name in ("fim_pre", "fim_suf", "fim_mid"))
        if before is None or after is None or middle is None:
            return None
        return FillMarks(before, after, middle, self.token("fim_rep"), self.token("fim_sep"))

    def own_key(self, key: str) -> str:
        return f"{self.text('general.architecture')}.{key}"

    def optional_size(self, key: str) -> int | None:
        return self.integer(self.own_key(key))

    def size(self, key: str) -> int:
        """Return the size under a key of the architecture; raises `ModelLoadError` for one that no model has."""
        value = self.optional_size(key)
        if value is None:
            raise ModelLoadError(f"{self.path} lacks the metadata {self.own_key(key)}")
        if not 1 <= value <= LARGEST_SIZE:
            raise ModelLoadError(f"{self.path}: {self.own_key(key)} is {value}; allowed: 1 to {LARGEST_SIZE}")
        return value

    def float32(self, key: str, default: float) -> float:
        value = self.metadata.get(self.own_key(key), default)
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise ModelLoadError(f"{self.path}: {self.own_key(key)} is {value!r:.40}; expected a number")
        return float(value)

    def number(self, key: str, default: float | None = None) -> float:
        """Return a float32 number as the decimal number that it was written from, of up to 6 digits.

        Raises `ModelLoadError` for one that is missing and has no default.
        """
        if default is None and self.own_key(key) not in self.metadata:
            raise ModelLoadError(f"{self.path} lacks the metadata {self.own_key(key)}")
        return float(f"{self.float32(key, math.nan if default is None else default):.6g}")

    @property
    def head_dim(self) -> int:
        if self.optional_size("attention.key_length"):
            return self.size("attention.key_length")
        hidden, heads = self.size("embedding_length"), self.size("attention.head_count")
        if heads > hidden:
            raise ModelLoadError(f"{self.path}: an embedding of {hidden} for {heads} heads")
        return hidden // heads

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return the bytes of tensor `name`, read-only, where they lie in their file."""
        return self._homes[name].raw(name)

    def load(self, name: str) -> Tensor:
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


def part_paths(path: Path) -> list[Path]:
    """Return the files of the model that `path` is a part of, as its name says; only itself if it says nothing."""
    named = _NAME.fullmatch(path.name)
    if named is None or not 1 <= int(named[2]) <= int(named[3]):
        return [path]
    ending = path.name[-len(".gguf") :]
    return [path.with_name(f"{named[1]}-{i + 1:05}-of-{named[3]}{ending}") for i in range(int(named[3]))]


def open_parts(path: Path) -> list[GgufContainer]:
    """Open the file, or all parts of its model in their order; raises `ModelLoadError` unless they are one model."""
    given = GgufContainer(path)
    count = _number(given, _COUNT, 1)
    if count == 1:
        return [given]
    if len(paths := part_paths(path)) != count:
        paths = part_paths(path := path.resolve())  # of a link, which may be called anything
    if len(paths) != count:
        raise ModelLoadError(
            f"{path} is one of {count} parts of a model (split.count); allowed is a name that says which: "
            f"NAME-00001-of-{count:05}.gguf"
        )
    if missing := [part.name for part in paths if not part.is_file()]:
        raise ModelLoadError(
            f"{path.parent} lacks {', '.join(missing[:8])}: {len(missing)} of {count} parts of a model"
        )
    parts = [given if part == path else GgufContainer(part) for part in paths]
    _check(parts)
    return parts


def _check(parts: Sequence[GgufContainer]) -> None:
    """Raise `ModelLoadError` unless each is the part that its name says, and all together have all tensors."""
    first = parts[0]
    total = _number(first, _TENSORS, sum(len(part.tensors) for part in parts))
    seen: dict[str, GgufContainer] = {}
    for i, part in enumerate(parts):
        stated = (_number(part, _NUMBER, -1), _number(part, _COUNT, 1), _number(part, _TENSORS, total))
        if stated != (i, len(parts), total):
            raise ModelLoadError(
                f"{part.path} says that it is part {stated[0] + 1} of {stated[1]}, of a model of {stated[2]} tensors; "
                f"expected: part {i + 1} of {len(parts)}, of {total} tensors"
            )
        for key in part.metadata.keys() & first.metadata.keys():
            if key not in _OWN and part.metadata[key] != first.metadata[key]:
                raise ModelLoadError(f"{part.path} is a part of another model than {first.path.name}: {key} differs")
        for name in part.tensors:
            if name in seen:
                raise ModelLoadError(f"{part.path} and {seen[name].path.name} both have the tensor {name!r}")
            seen[name] = part
    if len(seen) != total:
        raise ModelLoadError(f"{first.path}: its {len(parts)} parts have {len(seen)} tensors; expected: {total}")


def _number(part: GgufContainer, key: str, default: int) -> int:
    value = part.metadata.get(key, default)
    if not isinstance(value, int):
        raise ModelLoadError(f"{part.path}: {key} is {value!r}; expected an integer")
    return value
