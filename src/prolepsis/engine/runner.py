"""Runs the rows of a step as one pass of the target, and moves the accepted path of a tree to its place."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from prolepsis.core.errors import ModelLoadError
from prolepsis.engine.models.protocol import ArgmaxModel, FeatureModel, KVCache, SequenceInput, TargetModel, pack
from prolepsis.engine.rows import Row, SampledTokens


def require_features(model: TargetModel) -> None:
    """Raise `ModelLoadError` for a model that cannot show its hidden states."""
    if not isinstance(model, FeatureModel):
        raise ModelLoadError(f"the forward {model.info.forward} shows no hidden states; allowed: native, lean")


@dataclass(frozen=True, slots=True)
class Computed:
    """Result of a pass. Rows of logits: for each row, the last tokens that it keeps and the nodes of its draft."""

    logits: Tensor  # [sum of kept, vocab] float32
    features: Tensor | None = None  # [tokens of all rows, aux_layers * hidden] bfloat16; None without aux_layers
    argmax: Sequence[int] | None = None  # the lowest id of each row's largest logit, if the pass found it
    rows: Sequence[Row] | None = None
    """The rows that were computed, where the runner decides that itself; None: those that were asked for."""


class PassRunner(Protocol):
    """Computes the rows of a step; `Runner` on our targets, `prolepsis.adapters.vllm.runner` in vLLM."""

    def forward(self, rows: Sequence[Row], aux_layers: tuple[int, ...] = ()) -> Computed: ...

    def compact(self, rows: Sequence[Row], sampled: Sequence[SampledTokens | None]) -> None:
        """Learn what the rows sampled, before it is committed: the K/V of rejected nodes is void."""


class StepVerifier(Protocol):
    def verify(self, rows: Sequence[Row], computed: Computed) -> list[SampledTokens | None]:
        """Return the tokens that each row emits; None for rows that sample nothing."""


class Runner:
    def __init__(self, model: TargetModel, cache: KVCache) -> None:
        self.model = model
        self.cache = cache
        self._shows = model.forward_features if isinstance(model, FeatureModel) else None
        self._picks = model.forward_argmax if isinstance(model, ArgmaxModel) else None

    def forward(self, rows: Sequence[Row], aux_layers: tuple[int, ...] = ()) -> Computed:
        """Compute the rows' tokens and drafts; `aux_layers` are the layers whose input is returned too."""
        batch = pack([_sequence(row) for row in rows])
        if self._picks is not None:
            logits, features, argmax = self._picks(batch, self.cache, aux_layers)
            return Computed(logits, features if aux_layers else None, argmax)
        if aux_layers and self._shows is not None:
            return Computed(*self._shows(batch, self.cache, aux_layers))
        return Computed(self.model.forward(batch, self.cache))

    def compact(self, rows: Sequence[Row], sampled: Sequence[SampledTokens | None]) -> None:
        """Move the KV of accepted nodes behind the committed tokens; nothing moves for the principal chain."""
        for row, result in zip(rows, sampled, strict=True):
            if result is not None and result.path and result.path[-1] != len(result.path) - 1:
                base = row.start + row.num_tokens
                moves = [(base + node, base + i) for i, node in enumerate(result.path) if node != i]
                self.cache.move(row.sequence.pages, moves)


def _sequence(row: Row) -> SequenceInput:
    sequence, draft, end = row.sequence, row.draft, row.start + row.num_tokens
    token_ids = sequence.tokens[row.start : end]
    if draft is None:
        return SequenceInput(token_ids, row.start, sequence.pages, keep_last=row.num_kept)
    parents = None
    if not draft.is_chain:
        parents = [*range(-1, row.num_tokens - 1), *(row.num_tokens + p for p in draft.parents)]  # ROOT is -1
    return SequenceInput(
        [*token_ids, *draft.tokens], row.start, sequence.pages, parents, keep_last=row.num_kept + len(draft.tokens)
    )
