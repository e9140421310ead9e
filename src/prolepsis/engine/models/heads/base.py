"""The interface of a draft head, for every forward that can run one.

A head (EAGLE-3, arXiv 2503.01840) is one decoder layer that predicts from the target's hidden states. The inputs of its
slot s are token s and the state g of the token before: `fc` of the target's features if the target computed that token,
the head's own state if the token was drafted, zeros at slot 0. The slot predicts token s + 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from prolepsis.core.requests import SamplingParams
from prolepsis.engine.models.protocol import Batch, KVCache

SHORTLIST = 64
"""Candidates of a level, among which the level chooses once the drafted token before it is known."""


@dataclass(frozen=True, slots=True)
class HeadInfo:
    """Facts about a loaded head."""

    name: str
    aux_layers: tuple[int, ...]
    """Layers of the target whose input the head reads (EAGLE-3: auxiliary hidden-state layers)."""
    feature_size: int  # size of one token's features: number of these layers times the target's hidden size
    page_bytes: int  # memory of one of its KV pages, in bytes
    weight_bytes: int
    levels: int = 0
    """Number of levels: further tokens that a pass over committed tokens predicts (`LookaheadHead`)."""
    serves: frozenset[str] = frozenset()
    """Digests of the tenants that it drafts for (`core.learning.tenant_digest`); empty: for everybody."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """A head's predictions after each of L rows, the likeliest tokens first."""

    tokens: Tensor  # [L, k] int64, the target's token ids
    logprobs: Tensor  # [L, k] float32, over the head's whole vocabulary
    states: Tensor  # [L, hidden] float32: g of a token drafted after the row


def likeliest(logits: Tensor, states: Tensor, count: int, target_ids: Tensor | None = None) -> Candidates:
    """Return the likeliest of logits [L, D], whose tokens are `target_ids` [D] (None: the target's vocabulary)."""
    logprobs, ids = logits.log_softmax(-1).topk(count)
    return Candidates((ids if target_ids is None else target_ids[ids]).cpu(), logprobs.cpu(), states)


@dataclass(frozen=True, slots=True)
class Lookahead:
    """A head's predictions after each of L rows and for n levels (`LookaheadHead.follow` makes candidates of these)."""

    first: Candidates
    ahead: Tensor  # [n * L, hidden] float32: states before the drafted token is known (`levels`), level by level
    shortlist: Tensor  # [n * L, k]: the likeliest draft ids of each state
    entered: Tensor  # [n * L, width] float32: the part of the states that is combined with the drafted token


@dataclass(frozen=True, slots=True)
class TreeParams:
    """Expansion of draft trees, the same for all sequences (EAGLE-2, arXiv 2406.16858)."""

    num_candidates: int  # candidates considered after a node
    max_children: int  # most children of a node
    max_expanded: int  # most nodes of a level that get children
    min_survival: float  # nodes with a lower survival probability are dropped


@dataclass(frozen=True, slots=True)
class TreeSpec:
    """The limits of one sequence's tree, and its sampling."""

    max_depth: int
    node_budget: int  # most nodes
    expansion_threshold: float  # nodes with a lower survival probability get no children
    params: SamplingParams
    noise_key: int
    position: int  # output position of the first drafted token


@dataclass(frozen=True, slots=True)
class DraftTree:
    """A tree that begins with its principal chain (`drafting.draft.Draft`); parent -1 is the last committed token."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    survival: tuple[float, ...]
    chances: tuple[float, ...]  # probability of each node, given its parent


class DraftHead(Protocol):
    """A draft head with its own paged KV, under the target's page numbers."""

    @property
    def info(self) -> HeadInfo: ...

    def make_cache(self, num_pages: int) -> KVCache:
        """Allocate zeroed KV pages."""

    def committed(self, batch: Batch, cache: KVCache, features: Tensor, count: int) -> Candidates:
        """Write the K/V of committed tokens and return the `count` likeliest tokens after `batch.logit_rows`.

        `features` ([T, feature_size] bfloat16) are the target's, of the token before each token; zeros at slot 0.
        """

    def drafted(self, batch: Batch, cache: KVCache, states: Tensor, count: int) -> Candidates:
        """Do the same for drafted tokens; `states` ([T, hidden] float32) belong to each token's parent."""


@runtime_checkable
class LookaheadHead(DraftHead, Protocol):
    """A head that can draft `info.levels` further tokens with one pass over committed tokens."""

    def look_ahead(self, batch: Batch, cache: KVCache, features: Tensor, count: int) -> Lookahead:
        """Do `committed`, and predict the levels too."""

    def follow(
        self, lookahead: Lookahead, places: Sequence[int], tokens: Sequence[int], count: int
    ) -> tuple[Tensor, Tensor]:
        """Return candidates after drafted `tokens`: ids [m, k] int64 and log-probabilities [m, k] float32.

        `places[j]` = (i - 1) * L + row means that `tokens[j]` is the i-th drafted token after that row. Probabilities
        are over the shortlist.
        """


@runtime_checkable
class TreeHead(LookaheadHead, Protocol):
    """A head that grows whole trees over its levels in one call, as `proposers.head_tree` does level by level."""

    def trees(
        self, batch: Batch, cache: KVCache, features: Tensor, tree_params: TreeParams, specs: Sequence[TreeSpec]
    ) -> list[DraftTree]:
        """Do `look_ahead` and return a tree for each sequence of `batch`, which keeps the logits of its last row."""
