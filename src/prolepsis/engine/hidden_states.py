"""Routes the hidden states of a pass to draft heads and recorders, for committed tokens only."""

from collections.abc import Callable, Sequence

import structlog
import torch
from torch import Tensor

from prolepsis.engine.drafting.proposer import HiddenStateConsumer, HiddenStates, Proposer
from prolepsis.engine.request import SequenceState
from prolepsis.engine.rows import Row, SampledTokens

log = structlog.get_logger(__name__)


class _Route:
    """A consumer, and for each row of this step whether it takes the row."""

    def __init__(self, consumer: HiddenStateConsumer) -> None:
        self.consumer = consumer
        self.proposer = consumer if isinstance(consumer, Proposer) else None
        self.takes: list[bool] = []

    def begin(self, rows: Sequence[Row], may_draft: Callable[[SequenceState, str], bool]) -> None:
        """A proposer takes prompts, whose pages others may share, and all tokens of sequences that it may draft for.

        Of a tenant that it does not serve it takes nothing: pages are shared within a tenant only.
        """
        if self.proposer is None:
            self.takes = [True] * len(rows)
            return
        name = self.proposer.name
        self.takes = [
            may_draft(row.sequence, name)
            or (row.start < row.sequence.num_prompt_tokens and row.sequence.replays is None)
            for row in rows
        ]
        self.takes = [takes and self.proposer.serves(row.sequence) for takes, row in zip(self.takes, rows, strict=True)]

    @property
    def takes_any(self) -> bool:
        return True in self.takes

    def feed(self, rows: Sequence[Row], sampled: Sequence[SampledTokens | None], features: Tensor | None) -> None:
        if self.proposer is not None and False in self.takes:
            for row, result, is_taken in zip(rows, sampled, self.takes, strict=True):
                if not is_taken:
                    num_accepted = len(result.path) if result is not None else 0
                    self.proposer.miss(row.sequence, row.start, row.start + row.num_tokens + num_accepted)
        if features is not None and self.takes_any:
            self.consumer.take(self._cut(rows, sampled, features))

    def _cut(
        self, rows: Sequence[Row], sampled: Sequence[SampledTokens | None], features: Tensor
    ) -> list[HiddenStates]:
        states: list[HiddenStates] = []
        end = 0
        for row, result, is_taken in zip(rows, sampled, self.takes, strict=True):
            first, end = end, end + row.num_scheduled_tokens
            if not is_taken:
                continue
            tokens = row.sequence.tokens[row.start : row.start + row.num_tokens]
            path: tuple[int, ...] = ()
            if row.draft is not None and result is not None:
                path = result.path
                tokens = [*tokens, *(row.draft.tokens[node] for node in path)]
            behind = first + row.num_tokens
            if not path or path[-1] == len(path) - 1:  # the principal chain: its rows follow on
                part = features[first : behind + len(path)]
            else:
                kept = [*range(first, behind), *(behind + node for node in path)]
                part = features.index_select(0, torch.tensor(kept))
            states.append(HiddenStates(row.sequence, row.start, tokens, part))
        return states


class HiddenStateRouter:
    """Cuts features [tokens, all aux_layers * hidden] into the part of each consumer, row by row.

    A consumer that raises costs drafts, never a request: it is logged and counted.
    """

    def __init__(self, consumers: Sequence[HiddenStateConsumer] = (), *, always_capture: bool = False) -> None:
        """`always_capture`: for a model whose pass takes another path to capture hidden states, so all take it."""
        self._routes = [_Route(consumer) for consumer in consumers]
        self._always_capture = always_capture
        self._capturing: list[_Route] = []  # routes whose layers this step captures
        self.num_failures = 0

    @property
    def aux_layers(self) -> tuple[int, ...]:
        """Layers whose input a consumer may take, consumer by consumer."""
        return tuple(layer for route in self._routes for layer in route.consumer.aux_layers)

    def exchange(self, old: HiddenStateConsumer | None, new: HiddenStateConsumer | None) -> None:
        others = [route for route in self._routes if route.consumer is not old]
        self._routes = [*([_Route(new)] if new is not None else []), *others]

    def begin(self, rows: Sequence[Row], may_draft: Callable[[SequenceState, str], bool]) -> tuple[int, ...]:
        """Decide which rows of a step each consumer takes, before its pass; return the layers to capture.

        `may_draft(sequence, name)`: whether the proposer of that name may draft for the sequence.
        """
        for route in self._routes:
            route.begin(rows, may_draft)
        self._capturing = [route for route in self._routes if self._always_capture or route.takes_any]
        return tuple(layer for route in self._capturing for layer in route.consumer.aux_layers)

    def feed(self, rows: Sequence[Row], sampled: Sequence[SampledTokens | None], features: Tensor | None) -> None:
        """Give consumers the `features` of the layers that `begin` returned; before the step is committed."""
        num_layers = sum(len(route.consumer.aux_layers) for route in self._capturing)
        hidden = features.shape[1] // num_layers if features is not None else 0
        left = 0
        for route in self._routes:
            part = None
            if features is not None and route in self._capturing:
                right = left + len(route.consumer.aux_layers) * hidden
                part = features if len(self._capturing) == 1 else features[:, left:right]
                left = right
            try:
                route.feed(rows, sampled, part)
            except Exception:  # contained: see above
                self.num_failures += 1
                log.exception("features_not_taken", consumer=type(route.consumer).__name__)

    def forget(self, sequences: Sequence[SequenceState]) -> None:
        """Notify proposers of sequences that ended, also of any that they never drafted for."""
        for route in self._routes:
            if route.proposer is not None:
                for sequence in sequences:
                    route.proposer.forget(sequence)
