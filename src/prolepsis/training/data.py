"""Training data on disk: documents in a folder of safetensors shards, split into training and held-out documents.

Shards are written whole, one after another, and read document by document.

Legend: N tokens and D documents of a shard, F = aux_layers * hidden.
"""

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice, pairwise
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from prolepsis.core.errors import ConfigError
from prolepsis.core.files import replacing
from prolepsis.engine.drafting.proposers.head import PROMPT_TOKENS

MANIFEST = "manifest.json"
BASE_KIND = "base: "  # begins the kind of a document of the base text, from which what one learns goes on
HELD_OUT_EVERY = 40
"""One document in this many is never trained on."""
MAX_LENGTH = 1024
"""Tokens of a document that are used for training."""


@dataclass(frozen=True, slots=True)
class TrainingDocument:
    """A prompt and its response with the target's hidden states, for every token except the last one emitted."""

    number: int  # number of the prompt; the split and resumption depend on it
    kind: str
    greedy: bool
    tokens: Tensor  # [n] int32
    response_start: int
    features: Tensor  # [n, aux_layers * hidden] bfloat16
    earlier: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int32))
    """Tokens of the prompt before these, [e] int32: a head reads the states of its last tokens only."""

    def trimmed(self) -> "TrainingDocument":
        """Return the document without the states of tokens that are too far before the response for a head."""
        early = self.response_start - PROMPT_TOKENS
        if early <= 0:
            return self
        return replace(
            self,
            earlier=torch.cat([self.earlier, self.tokens[:early]]),
            tokens=self.tokens[early:],
            response_start=PROMPT_TOKENS,
            features=self.features[early:].clone(),
        )

    @property
    def num_anchors(self) -> int:
        """Slots that predict a token of the response."""
        return len(self.tokens) - self.response_start + 1


@dataclass(frozen=True, slots=True)
class DataManifest:
    """Origin of the shards of a folder; all of them share it."""

    target: str
    fingerprint: str
    """Fingerprint of the target: features of other weights or kernels must not be mixed with these."""
    aux_layers: tuple[int, ...]
    hidden: int
    vocab_size: int


def open_folder(folder: Path, manifest: DataManifest) -> None:
    """Prepare `folder` for shards of `manifest`; raises `ConfigError` if it holds shards of another origin."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / MANIFEST
    if file.exists():
        stored = read_manifest(folder)
        differences = ", ".join(
            f"{name} is {getattr(stored, name)}, not {getattr(manifest, name)}"
            for name in DataManifest.__slots__
            if getattr(stored, name) != getattr(manifest, name)
        )
        if differences:
            raise ConfigError(f"{folder} holds data of another run: {differences}", param="out")
        return
    with replacing(file) as part:
        part.write_text(json.dumps(asdict(manifest), indent=2) + "\n")


def read_manifest(folder: Path) -> DataManifest:
    """Read the manifest of `folder`; raises `ConfigError` if there is no valid one."""
    file = folder / MANIFEST
    try:
        fields = json.loads(file.read_text())
        return DataManifest(**{**fields, "aux_layers": tuple(fields["aux_layers"])})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file} is not a manifest of training data: {error!r}", param="out") from error


class ShardWriter:
    """Collects documents and writes one shard for each `tokens_per_shard` tokens."""

    def __init__(self, folder: Path, manifest: DataManifest, *, tokens_per_shard: int = 65536) -> None:
        open_folder(folder, manifest)
        self._folder = folder
        self._tokens_per_shard = tokens_per_shard
        self._documents: list[TrainingDocument] = []
        self._num_tokens = 0
        self._next = 1 + max((int(file.stem.split("-")[2]) for file in folder.glob(self._pattern("*"))), default=-1)

    def add(self, document: TrainingDocument) -> int:
        """Add `document`, trimmed, and return its tokens; writes a shard once there is enough for one."""
        kept = document.trimmed()
        self._documents.append(kept)
        self._num_tokens += len(kept.tokens)
        if self._num_tokens >= self._tokens_per_shard:
            self.flush()
        return len(kept.tokens)

    def flush(self) -> None:
        """Write the remaining documents as a shard."""
        if not self._documents:
            return
        file = self._folder / self._pattern(f"{self._next:05d}")
        with replacing(file) as part:
            save_file(pack(self._documents), part, {"kinds": json.dumps([d.kind for d in self._documents])})
        self._next += 1
        self._documents, self._num_tokens = [], 0

    @staticmethod
    def _pattern(number: str) -> str:
        return f"shard-0-{number}.safetensors"


def pack(documents: Sequence[TrainingDocument]) -> dict[str, Tensor]:
    """Return the tensors of a shard."""
    lengths = torch.tensor([0, *(len(d.tokens) for d in documents)])
    earlier = torch.tensor([0, *(len(d.earlier) for d in documents)])
    return {
        "tokens": torch.cat([d.tokens for d in documents]),  # [N] int32
        "features": torch.cat([d.features for d in documents]),  # [N, F] bfloat16
        "starts": lengths.cumsum(0),  # [D + 1] int64
        "responses": torch.tensor([d.response_start for d in documents]),  # [D] int64
        "numbers": torch.tensor([d.number for d in documents]),  # [D] int64
        "greedy": torch.tensor([d.greedy for d in documents]),  # [D] bool
        "earlier": torch.cat([d.earlier for d in documents]),  # [E] int32
        "earlier_starts": earlier.cumsum(0),  # [D + 1] int64
    }


class Shard:
    """One shard: its index is in memory; tokens and features are read from the file on demand.

    Raises `ConfigError` if the file is not a whole shard.
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
                self._earlier: list[int] = tensors.get_tensor("earlier_starts").tolist()
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{file} is not a whole shard of training data: {error}", param="out") from error

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def num_tokens(self) -> int:
        return self.starts[-1]

    def documents(self) -> "Iterator[DocumentRef]":
        lengths = (last - first for first, last in pairwise(self.starts))
        for index, fields in enumerate(zip(self.numbers, self.kinds, self.responses, lengths, strict=True)):
            yield DocumentRef(self, index, *fields)

    def read(self, index: int) -> TrainingDocument:
        """Read document `index`."""
        first, last = self.starts[index], self.starts[index + 1]
        with safe_open(str(self.file), framework="pt") as tensors:
            tokens = tensors.get_slice("tokens")[first:last]
            features = tensors.get_slice("features")[first:last]
            earlier = tensors.get_slice("earlier")[self._earlier[index] : self._earlier[index + 1]]
        start, number = self.responses[index], self.numbers[index]
        return TrainingDocument(number, self.kinds[index], self.greedy[index], tokens, start, features, earlier)

    def response(self, index: int) -> Tensor:
        """Read the response tokens of document `index`, [n] int32, without features."""
        first, last = self.starts[index] + self.responses[index], self.starts[index + 1]
        with safe_open(str(self.file), framework="pt") as tensors:
            tokens: Tensor = tensors.get_slice("tokens")[first:last]
        return tokens


def shards_of(folder: Path) -> list[Shard]:
    """Return the complete shards of `folder`, in order of their names."""
    return [Shard(file) for file in sorted(folder.glob("shard-*.safetensors"))]


@dataclass(frozen=True, slots=True)
class DocumentRef:
    """A document that is still on disk."""

    shard: Shard
    index: int
    number: int
    kind: str
    response_start: int
    length: int  # tokens of the document

    def num_anchors(self, first: int | None = None) -> int:
        """Return the slots that predict a token of the response; with `first`, any token from `first` on."""
        start = self.response_start if first is None else min(first, self.response_start)
        return max(0, min(self.length, MAX_LENGTH) - start + 1)


class Dataset:
    """The documents of a folder: the held-out ones, and the others in a new order for each epoch.

    `max_tokens` limits the training documents; the held-out ones stay the same.
    """

    def __init__(self, folder: Path, max_tokens: int | None = None) -> None:
        refs = [ref for shard in shards_of(folder) for ref in shard.documents()]
        self.held_out = [ref for ref in refs if ref.number % HELD_OUT_EVERY == 0]
        self.training: list[DocumentRef] = []
        self.num_tokens = 0
        for ref in refs:
            if ref.number % HELD_OUT_EVERY and (max_tokens is None or self.num_tokens < max_tokens):
                self.training.append(ref)
                self.num_tokens += ref.length

    @property
    def num_response_tokens(self) -> int:
        return self.num_tokens - sum(ref.response_start for ref in self.training)

    def epoch(self, seed: int, epoch: int) -> list[DocumentRef]:
        """Return the training documents in the order of `epoch`."""
        order = list(self.training)
        random.Random(f"{seed}/{epoch}").shuffle(order)
        return order

    def read_held_out(self, most: int) -> list[TrainingDocument]:
        """Read up to `most` greedy held-out documents: acceptance is measured on them."""
        documents = (document for ref in self.held_out for document in read([ref]))
        return list(islice((document for document in documents if document.greedy), most))

    def check_fills_a_step(self, num_anchors: int) -> None:
        """Raise `ConfigError` if the training documents have fewer than `num_anchors` anchors."""
        if not any(True for _ in groups(self.training, num_anchors)):
            raise ConfigError("there is too little text for one training step; allowed: more tokens", param="tokens")


def groups(order: Sequence[DocumentRef], num_anchors: int, first: int | None = None) -> Iterator[list[DocumentRef]]:
    """Yield groups of documents with about `num_anchors` anchors each; an incomplete last group is dropped."""
    group: list[DocumentRef] = []
    total = 0
    for ref in order:
        group.append(ref)
        total += ref.num_anchors(first)
        if total >= num_anchors:
            yield group
            group, total = [], 0


def responses(refs: Iterable[DocumentRef], *, without: str | None = None) -> Iterator[Tensor]:
    """Yield the response tokens of each document, but for those whose kind begins with `without`."""
    for ref in refs:
        if without is None or not ref.kind.startswith(without):
            yield ref.shard.response(ref.index)


def read(refs: Sequence[DocumentRef], first: int | None = None) -> list[TrainingDocument]:
    """Read the documents that have anchors. With `first`, prompt tokens from there on count as response."""
    documents = [ref.shard.read(ref.index) for ref in refs if ref.num_anchors(first) > 0]
    if first is None:
        return documents
    return [replace(document, response_start=min(document.response_start, first)) for document in documents]
