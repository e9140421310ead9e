"""Rows to one pass of the target, and the accepted path of a tree to its place in the cache."""

from collections.abc import Sequence

from torch import Tensor

from prolepsis.core.errors import ModelLoadError
from prolepsis.engine.rows import Row, Verdict
from prolepsis.models.batch import SequenceInput, pack
from prolepsis.models.protocol import FeatureModel, KVCache, TargetModel


def require_features(model: TargetModel) -> None:
    """Raise `ModelLoadError` for a model that cannot show its hidden states."""
    if not isinstance(model, FeatureModel):
        raise ModelLoadError(f"the forward {model.info.forward} shows no hidden states; allowed: native, lean")


class Runner:
    """Runs the target model over its paged cache."""

    def __init__(self, model: TargetModel, cache: KVCache) -> None:
        self.model = model
        self.cache = cache
        self._shows = model.forward_features if isinstance(model, FeatureModel) else None

    def forward(self, rows: Sequence[Row], taps: tuple[int, ...] = ()) -> tuple[Tensor, Tensor | None]:
        """Compute the rows' tokens and drafts; `taps` are the layers whose input somebody wants to see.

        Returns logits [sum of kept, vocab] float32 of each row that samples, its last token and its nodes; and features
        [tokens of all rows, taps * hidden] bfloat16, None without taps.
        """
        batch = pack([_sequence(row) for row in rows])
        if taps and self._shows is not None:
            return self._shows(batch, self.cache, taps)
        return self.model.forward(batch, self.cache), None

    def compact(self, rows: Sequence[Row], verdicts: Sequence[Verdict | None]) -> None:
        """Move the KV of accepted nodes behind the committed tokens; nothing moves for the principal chain."""
        for row, verdict in zip(rows, verdicts, strict=True):
            if verdict is not None and verdict.path and verdict.path[-1] != len(verdict.path) - 1:
                base = row.start + row.num_tokens
                moves = [(base + node, base + i) for i, node in enumerate(verdict.path) if node != i]
                self.cache.move(row.sample.pages, moves)


def _sequence(row: Row) -> SequenceInput:
    sample, draft, end = row.sample, row.draft, row.start + row.num_tokens
    token_ids = sample.tokens[row.start : end]
    if draft is None:
        return SequenceInput(token_ids, row.start, sample.pages, keep_last=int(row.samples_next))
    parents = None
    if not draft.is_chain:
        parents = [*range(-1, row.num_tokens - 1), *(row.num_tokens + p for p in draft.parents)]  # ROOT is -1
    return SequenceInput([*token_ids, *draft.tokens], row.start, sample.pages, parents, keep_last=1 + len(draft.tokens))
