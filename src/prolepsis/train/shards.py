"""Documents on disk: a folder of safetensors shards that are written whole, one after another, and read piece by piece.

Legend: N tokens and D documents of a shard, F = taps * hidden.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from prolepsis.core.errors import ConfigError
from prolepsis.train.synthesis import Document

MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What the shards of a folder were made from; all of them agree in it."""

    target: str
    fingerprint: str
    """Of the target: features of other weights or kernels are not to be mixed with these."""
    taps: tuple[int, ...]
    hidden: int
    vocab_size: int


def open_folder(folder: Path, manifest: Manifest) -> None:
    """Make `folder` ready for shards of `manifest`; raises `ConfigError` where it holds those of another."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / MANIFEST
    if file.exists():
        found = read_manifest(folder)
        differing = [name for name in Manifest.__slots__ if getattr(found, name) != getattr(manifest, name)]
        if differing:
            told = ", ".join(f"{name} {getattr(found, name)} against {getattr(manifest, name)}" for name in differing)
            raise ConfigError(f"{folder} holds features of another run: {told}", param="out")
        return
    part = file.with_suffix(f".{os.getpid()}.part")
    part.write_text(json.dumps(asdict(manifest), indent=2) + "\n")
    part.replace(file)


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of `folder`; raises `ConfigError` where there is none that can be read."""
    file = folder / MANIFEST
    try:
        fields = json.loads(file.read_text())
        return Manifest(**{**fields, "taps": tuple(fields["taps"])})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file} is no manifest of training data: {error!r}", param="out") from error


class ShardWriter:
    """Collects documents and writes one shard for each `tokens_per_shard` tokens."""

    def __init__(self, folder: Path, manifest: Manifest, *, writer: str = "0", tokens_per_shard: int = 65536) -> None:
        open_folder(folder, manifest)
        self._folder = folder
        self._writer = writer
        self._tokens_per_shard = tokens_per_shard
        self._documents: list[Document] = []
        self._num_tokens = 0
        self._next = 1 + max((int(file.stem.split("-")[2]) for file in folder.glob(self._pattern("*"))), default=-1)

    def add(self, document: Document) -> None:
        """Take `document` in; writes a shard when there is enough for one."""
        self._documents.append(document)
        self._num_tokens += len(document.tokens)
        if self._num_tokens >= self._tokens_per_shard:
            self.flush()

    def flush(self) -> None:
        """Write what is left as a shard of its own."""
        if not self._documents:
            return
        file = self._folder / self._pattern(f"{self._next:05d}")
        part = file.with_suffix(".part")
        save_file(pack(self._documents), part, {"kinds": json.dumps([d.kind for d in self._documents])})
        part.replace(file)
        self._next += 1
        self._documents, self._num_tokens = [], 0

    def _pattern(self, number: str) -> str:
        return f"shard-{self._writer}-{number}.safetensors"


def pack(documents: Sequence[Document]) -> dict[str, Tensor]:
    """Return the tensors of a shard."""
    lengths = torch.tensor([0, *(len(d.tokens) for d in documents)])
    return {
        "tokens": torch.cat([d.tokens for d in documents]),  # [N] int32
        "features": torch.cat([d.features for d in documents]),  # [N, F] bfloat16
        "starts": lengths.cumsum(0),  # [D + 1] int64
        "responses": torch.tensor([d.response_start for d in documents]),  # [D] int64
        "numbers": torch.tensor([d.number for d in documents]),  # [D] int64
        "greedy": torch.tensor([d.greedy for d in documents]),  # [D] bool
    }


class Shard:
    """One shard: its index in memory, tokens and features read from the file when asked for.

    Raises `ConfigError` where the file is no whole shard.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        try:
            with safe_open(str(file), framework="pt") as tensors:
                self.kinds: list[str] = json.loads(tensors.metadata()["kinds"])
                self.starts: list[int] = tensors.get_tensor("starts").tolist()
                self.responses: list[int] = tensors.get_tensor("responses").tolist()
                self.numbers: list[int] = tensors.get_tensor("numbers").tolist()
                self.greedy: list[bool] = tensors.get_tensor("greedy").tolist()
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{file} is no whole shard of training data: {error}", param="out") from error

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def num_tokens(self) -> int:
        return self.starts[-1]

    def read(self, index: int) -> Document:
        """Read document `index`."""
        first, last = self.starts[index], self.starts[index + 1]
        with safe_open(str(self.file), framework="pt") as tensors:
            tokens = tensors.get_traffic_class("tokens")[first:last]
            features = tensors.get_traffic_class("features")[first:last]
        start, number = self.responses[index], self.numbers[index]
        return Document(number, self.kinds[index], self.greedy[index], tokens, start, features)

    def response(self, index: int) -> Tensor:
        """Read the response tokens of document `index`, [n] int32, without features."""
        with safe_open(str(self.file), framework="pt") as tensors:
            tokens: Tensor = tensors.get_traffic_class("tokens")[
                self.starts[index] + self.responses[index] : self.starts[index + 1]
            ]
        return tokens


def shards_of(folder: Path) -> list[Shard]:
    """Return the shards that are whole by now, in order of their names."""
    return [Shard(file) for file in sorted(folder.glob("shard-*.safetensors"))]
