"""A model in GGUF: metadata and tensors by name, loaded on demand."""

import math
import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from prolepsis.core.errors import ModelLoadError
from prolepsis.engine.models.files.checkpoint import Checkpoint, Config, unread_tensors
from prolepsis.engine.models.files.gguf_config import ARCHITECTURES, gguf_config, refuse_unread, transformers_name
from prolepsis.engine.models.files.gguf_container import GgufTensor, Value
from prolepsis.engine.models.files.gguf_parts import open_parts
from prolepsis.engine.models.files.stored import BF16, PACKED, OnDemand, StoredMatrix
from prolepsis.engine.text.end_tokens import named_ends
from prolepsis.engine.text.fill_marks import FillMarks

CONTROL, USER_DEFINED = 3, 4
"""Kinds of tokens in `tokenizer.ggml.token_type`: marks of a conversation, and texts that are always one token."""
_STATED_ENDS = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
_NO_TOKEN = (-1, 2**32 - 1)
"""Ids with which some files say that there is none."""


class GgufFile:
    """A model in GGUF: `metadata` by key, `tensors` by name, whether they lie in one file or in several."""

    def __init__(self, path: Path) -> None:
        """Read the headers of the file and, if it is a part of a model, of the other parts.

        Raises `ModelLoadError` for a file that is not whole, and for parts that are missing or not of one model.
        """
        self._containers = open_parts(path)
        self.path = self._containers[0].path
        """The file, or the first part."""
        self.metadata: dict[str, Value] = self._containers[0].metadata
        self._homes = {name: container for container in self._containers for name in container.tensors}
        self.tensors: dict[str, GgufTensor] = {name: home.tensors[name] for name, home in self._homes.items()}

    @property
    def files(self) -> list[Path]:
        """The file, or all parts in their order."""
        return [one.path for one in self._containers]

    @property
    def is_split(self) -> bool:
        return len(self._containers) > 1

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
        strings = [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
        if not isinstance(value, list) or len(strings) < len(value):
            raise ModelLoadError(f"{self.path}: {key} is not a list of strings")
        return strings

    def integers(self, key: str) -> list[int]:
        """Return the list of integers under `key`, empty if it is missing."""
        numbers = self._numbers(key)
        whole = [number for number in numbers if isinstance(number, int)]
        if len(whole) < len(numbers):
            raise ModelLoadError(f"{self.path}: {key} is not a list of integers")
        return whole

    def floats(self, key: str) -> list[float]:
        """Return the list of numbers under `key`, empty if it is missing."""
        return [float(number) for number in self._numbers(key)]

    def _numbers(self, key: str) -> list[int | float]:
        value = self.metadata.get(key, [])
        numbers = [item for item in value if isinstance(item, int | float)] if isinstance(value, list) else []
        if not isinstance(value, list) or len(numbers) < len(value):
            raise ModelLoadError(f"{self.path}: {key} is not a list of numbers")
        return numbers

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

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return the bytes of tensor `name`, read-only, where they lie in their file."""
        return self._homes[name].raw(name)

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


def open_gguf(file: GgufFile, dtype: torch.dtype) -> Checkpoint:
    """Return configuration and tensors of a GGUF file; raises `ModelLoadError` for an unknown architecture."""
    architecture = file.text("general.architecture")
    if architecture in ARCHITECTURES and not any("_exps" in name for name in file.tensors):
        refuse_unread(file)
        config = gguf_config(file)
        weights = GgufWeights(file, config, dtype)
        return Checkpoint(config, weights.tensors, file.path, weights.matrices)
    if file.is_split:
        raise ModelLoadError(
            f"{file.path}: architecture {architecture!r} is read from one file only; join the parts first: "
            "llama-gguf-split --merge FIRST_PART WHOLE_FILE"
        )
    return _other(file, architecture, dtype)


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
        if heads is None:
            return rows
        if rows.shape[0] % (2 * heads):
            raise ModelLoadError(
                f"{self._file.path}: {self._names[name]} has {rows.shape[0]} rows; "
                f"allowed: a multiple of {2 * heads}, twice its {heads} heads"
            )
        return unpermute(rows, heads)


def unpermute(tensor: Tensor, heads: int) -> Tensor:
    """Undo llama.cpp's interleaving of rotary pairs: row (2i + j) of a head goes to row (j * d / 2 + i)."""
    half = tensor.shape[0] // heads // 2
    return tensor.view(heads, half, 2, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)


def _other(file: GgufFile, architecture: str, dtype: torch.dtype) -> Checkpoint:
    """Let transformers read architectures outside the known families; all tensors are loaded at once."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    path = file.path
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
    tensors = {name: torch.as_tensor(tensor).to(dtype) for name, tensor in found.items()}
    held = sum(math.prod(entry.shape) for entry in file.tensors.values())
    if (taken := sum(tensor.numel() for tensor in tensors.values())) != held:
        unread = _unmapped(file, names) or ["of a layer"]
        raise ModelLoadError(f"{path}: {unread_tensors(unread, architecture)}: {held - taken} of {held} weights")
    return Checkpoint(config, tensors, path)


def _unmapped(file: GgufFile, model: nn.Module) -> list[str]:
    """Return the tensors for which transformers knows no parameter of `model`."""
    from transformers.modeling_gguf_pytorch_utils import TensorProcessor, get_gguf_hf_weights_map

    known = get_gguf_hf_weights_map(model, TensorProcessor())
    return sorted(name for name in file.tensors if name not in known)
