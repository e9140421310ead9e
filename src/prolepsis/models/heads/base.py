"""What drafting needs of a draft head, whichever forward runs it.

A head (EAGLE-3, arXiv 2503.01840) is one decoder layer that predicts from the target's hidden states. Its slot s takes
token s and g of the token before: `fc` of the target's features where the target computed that token, the head's own
state where it was drafted, zeros at slot 0. It predicts token s + 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from prolepsis.core.requests import SamplingParams
from prolepsis.models.protocol import Batch, KVCache

SHORTLIST = 64
"""Tokens of a further level that a drafted token chooses among."""


@dataclass(frozen=True, slots=True)
class HeadInfo:
    """Facts about a loaded head."""

    name: str
    taps: tuple[int, ...]
    """Layers of the target whose input it is conditioned on."""
    feature_size: int
    """Numbers of one token's features: taps times the target's hidden size."""
    num_candidates: int
    """Tokens it can draft."""
    page_bytes: int
    """Memory of one of its KV pages, in bytes."""
    weight_bytes: int
    levels: int = 0
    """Further levels that a pass over committed tokens can tell of (`LookingAhead`)."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """What a head expects after each of L rows: the likeliest tokens first."""

    tokens: Tensor  # [L, k] int64, the target's token ids
    logprobs: Tensor  # [L, k] float32, over the head's whole vocabulary
    states: Tensor  # [L, hidden] float32: g of a token drafted after the row


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a head expects after each of L rows, and n levels further: `LookingAhead.follow` makes candidates of it."""

    first: Candidates
    ahead: Tensor  # [n * L, hidden] float32: states whatever is drafted (`models.head_levels`), level by level
    shortlist: Tensor  # [n * L, k]: the likeliest draft ids there
    entered: Tensor  # [n * L, width] float32: what of the states meets the drafted token


@dataclass(frozen=True, slots=True)
class Growth:
    """How a draft tree grows over levels, whatever the sample."""

    candidates: int
    """Tokens looked at after a node."""
    children: int
    """Nodes kept below one node at most."""
    width: int
    """Nodes of a level that get children at most."""
    floor: float
    """Nodes that survive less often are not kept."""


@dataclass(frozen=True, slots=True)
class TreeWish:
    """What one sample may have of a tree, and how it samples."""

    depth: int
    limit: int
    """Most nodes."""
    threshold: float
    """Nodes that survive less often get no children."""
    params: SamplingParams
    noise_key: int
    position: int
    """Output position of the first drafted token."""


@dataclass(frozen=True, slots=True)
class GrownTree:
    """A tree, its principal chain in front (`spec.draft.Draft`); parent -1 is the last committed token."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    survival: tuple[float, ...]
    chances: tuple[float, ...]
    """Of each node, given its parent."""


class DraftHead(Protocol):
    """A draft head over paged KV of its own, which has the target's page numbers."""

    @property
    def info(self) -> HeadInfo: ...

    def make_cache(self, num_pages: int) -> KVCache:
        """Allocate zeroed KV pages."""

    def committed(self, batch: Batch, cache: KVCache, features: Tensor, count: int) -> Candidates:
        """Write the K/V of committed tokens and return the `count` likeliest tokens after `batch.logit_rows`.

        features [T, feature_size] bfloat16: the target's, of the token before each of the batch; zeros at slot 0.
        """

    def drafted(self, batch: Batch, cache: KVCache, states: Tensor, count: int) -> Candidates:
        """Do the same for drafted tokens: states [T, hidden] float32 are those of each token's parent."""


@runtime_checkable
class LookingAhead(DraftHead, Protocol):
    """A head that drafts several levels with one pass over committed tokens, where `info.levels` says so."""

    def outlook(self, batch: Batch, cache: KVCache, features: Tensor, count: int) -> Outlook:
        """Do `committed`, with what is expected further on."""

    def follow(
        self, outlook: Outlook, places: Sequence[int], tokens: Sequence[int], count: int
    ) -> tuple[Tensor, Tensor]:
        """Return candidates after drafted `tokens`: ids [m, k] int64 and log-probabilities [m, k] float32.

        `places[j]` = (i - 1) * L + row says that `tokens[j]` is the i-th drafted token after that row. Probabilities
        are over the shortlist.
        """


@runtime_checkable
class TreeGrowing(LookingAhead, Protocol):
    """A head that grows whole trees over its levels in one call, as `spec.proposers.head_tree` does level by level."""

    def trees(
        self, batch: Batch, cache: KVCache, features: Tensor, growth: Growth, wishes: Sequence[TreeWish]
    ) -> list[GrownTree]:
        """Do `outlook` and return a tree for each sequence of `batch`, which keeps the logits of its last row."""
