"""From shards to batches: the split by document, an order for each epoch, and documents laid flat.

Legend: N slots of a batch, d hidden size, D draft vocabulary.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch import Tensor

from prolepsis.models.targets.lean import rms_norm
from prolepsis.train.losses import trimmed
from prolepsis.train.shards import Shard, shards_of
from prolepsis.train.synthesis import Document
from prolepsis.train.unroll import FlatBatch, Passage

HELD_OUT_EVERY = 40
"""One document in so many is never trained on."""
MAX_LENGTH = 512
"""Slots of a document that are trained on."""

Place = tuple[Shard, int]


class Library:
    """The documents of a folder: those held out, and the others in a new order for each epoch.

    With `max_tokens`, training stops short at so many tokens; what is held out stays the same.
    """

    def __init__(self, folder: Path, max_tokens: int | None = None) -> None:
        places = [(shard, index) for shard in shards_of(folder) for index in range(len(shard))]
        self.held_out = [place for place in places if _number(place) % HELD_OUT_EVERY == 0]
        self.training: list[Place] = []
        self.num_tokens = 0
        for place in places:
            if _number(place) % HELD_OUT_EVERY and (max_tokens is None or self.num_tokens < max_tokens):
                self.training.append(place)
                self.num_tokens += length_of(place)

    @property
    def num_response_tokens(self) -> int:
        return self.num_tokens - sum(shard.responses[index] for shard, index in self.training)

    def response_tokens(self) -> Iterator[Tensor]:
        """Yield the response tokens of each training document."""
        for shard, index in self.training:
            yield shard.response(index)

    def epoch(self, seed: int, epoch: int) -> list[Place]:
        """Return the training documents in the order of `epoch`."""
        order = list(self.training)
        random.Random(f"{seed}/{epoch}").shuffle(order)
        return order


def groups(order: Sequence[Place], num_anchors: int, first: int | None = None) -> Iterator[list[Place]]:
    """Yield runs of documents of about `num_anchors` anchors; what does not fill a run at the end is left out."""
    group: list[Place] = []
    total = 0
    for place in order:
        group.append(place)
        total += anchors_of(place, first)
        if total >= num_anchors:
            yield group
            group, total = [], 0


def anchors_of(place: Place, first: int | None = None) -> int:
    """Return the anchors of a document: slots that guess a token of the response, or any token from `first` on."""
    shard, index = place
    start = shard.responses[index] if first is None else min(first, shard.responses[index])
    return max(0, min(length_of(place), MAX_LENGTH) - start + 1)


def length_of(place: Place) -> int:
    """Return the tokens of a document."""
    shard, index = place
    return shard.starts[index + 1] - shard.starts[index]


def read(places: Sequence[Place], first: int | None = None) -> list[Document]:
    """Read documents; those without an anchor are left out. With `first`, prompts from there on count as response."""
    documents = [shard.read(index) for shard, index in places if anchors_of((shard, index), first) > 0]
    if first is None:
        return documents
    return [replace(document, response_start=min(document.response_start, first)) for document in documents]


@dataclass(frozen=True, slots=True)
class TargetEnds:
    """What training needs of the target's weights, in float32: all of them frozen."""

    embedding: Tensor  # [V, d]
    final_norm: Tensor  # [d]
    head: Tensor  # [D, d] rows of the output head at the draft vocabulary
    eps: float


@dataclass(frozen=True, slots=True)
class Batch:
    """Documents laid flat, with what the target says after each slot; `row_of` leads from slot to row of `states`."""

    flat: FlatBatch
    states: Tensor  # [S, d] the target's normed last states at the slots of all steps
    row_of: Tensor  # [N] int64
    tokens: Tensor  # [N] int64

    def probabilities(self, ends: TargetEnds) -> Tensor:  # [S, D]
        """Return the target's distribution over the draft vocabulary."""
        return trimmed(F.linear(self.states, ends.head))

    def covered(self, t2d: Tensor) -> Tensor:  # [N] bool
        """Say of each slot whether the token after it can be drafted; unknown after the last: yes."""
        known = torch.ones(len(self.tokens), dtype=torch.bool)
        known[:-1] = t2d[self.tokens[1:]]
        known[[p.end - 1 for p in self.flat.passages]] = True
        return known


def lay_flat(documents: Sequence[Document], ends: TargetEnds, num_taps: int) -> Batch:
    """Lay `documents` one after another; features hold `num_taps` hidden states and then the last layer's output.

    The first slot that guesses a response token is the last of the prompt.
    """
    hidden = ends.embedding.shape[1]
    passages: list[Passage] = []
    start = 0
    for document in documents:
        end = start + min(len(document.tokens), MAX_LENGTH)
        passages.append(Passage(start, end, start + document.response_start - 1))
        start = end
    tokens = torch.cat([d.tokens[:MAX_LENGTH] for d in documents]).long()
    features = torch.cat([d.features[:MAX_LENGTH] for d in documents])
    slots = torch.cat([torch.arange(p.first, p.end) for p in passages])
    row_of = torch.zeros(len(tokens), dtype=torch.int64)
    row_of[slots] = torch.arange(len(slots))
    states = rms_norm(features[slots, num_taps * hidden :].float(), ends.final_norm, ends.eps)
    flat = FlatBatch(ends.embedding[tokens], features[:, : num_taps * hidden].float(), tuple(passages))
    return Batch(flat, states, row_of, tokens)


def _number(place: Place) -> int:
    shard, index = place
    return shard.numbers[index]
