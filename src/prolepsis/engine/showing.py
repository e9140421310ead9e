"""From a pass's hidden states to those who want to see them, each sample's committed tokens only."""

from collections.abc import Sequence

import structlog
import torch
from torch import Tensor

from prolepsis.engine.rows import Row, Verdict
from prolepsis.spec.features import FeatureConsumer, Shown

log = structlog.get_logger(__name__)


class Showing:
    """Cuts features [tokens, all taps * hidden] into what each consumer asked for, row by row.

    A consumer that raises costs drafts, never a request: it is logged and counted.
    """

    def __init__(self, consumers: Sequence[FeatureConsumer] = ()) -> None:
        self.consumers = tuple(consumers)
        self.num_failures = 0

    @property
    def taps(self) -> tuple[int, ...]:
        """Layers whose input somebody wants to see, consumer by consumer."""
        return tuple(tap for consumer in self.consumers for tap in consumer.taps)

    def exchange(self, old: FeatureConsumer | None, new: FeatureConsumer | None) -> None:
        """Between two steps, show the hidden states to `new` in the place of `old`."""
        others = tuple(consumer for consumer in self.consumers if consumer is not old)
        self.consumers = (*([new] if new is not None else []), *others)

    def show(self, rows: Sequence[Row], verdicts: Sequence[Verdict | None], features: Tensor | None) -> None:
        """Show what the step computed; to be called before it is committed."""
        if features is None:
            return
        hidden = features.shape[1] // len(self.taps)
        left = 0
        for consumer in self.consumers:
            right = left + len(consumer.taps) * hidden
            try:
                consumer.take(_shown(rows, verdicts, features[:, left:right]))
            except Exception:  # contained: see above
                self.num_failures += 1
                log.exception("features_not_taken", consumer=type(consumer).__name__)
            left = right


def _shown(rows: Sequence[Row], verdicts: Sequence[Verdict | None], features: Tensor) -> list[Shown]:
    shown: list[Shown] = []
    first = 0
    for row, verdict in zip(rows, verdicts, strict=True):
        end = first + row.num_tokens
        tokens, seen = row.sample.tokens[row.start : row.start + row.num_tokens], features[first:end]
        path = verdict.path if verdict is not None and row.draft is not None else ()
        if path and row.draft is not None:
            tokens = [*tokens, *(row.draft.tokens[node] for node in path)]
            if path[-1] == len(path) - 1:  # the principal chain: its rows follow on
                seen = features[first : end + len(path)]
            else:
                seen = features.index_select(0, torch.tensor([*range(first, end), *(end + node for node in path)]))
        shown.append(Shown(row.sample, row.start, tokens, seen))
        first += row.num_rows
    return shown
