"""From a pass's hidden states to those who want to see them, each sequence's committed tokens only."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog
import torch
from torch import Tensor

from prolepsis.engine.request import SequenceState
from prolepsis.engine.rows import Row, Verdict
from prolepsis.spec.proposer import DraftingConsumer, FeatureConsumer, Shown

log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class _Viewer:
    """A consumer, and for each row of this step whether it is shown and whether its sequence may be drafted for."""

    consumer: FeatureConsumer
    drafter: DraftingConsumer | None
    shown: list[bool] = field(default_factory=list)
    drafts: list[bool] = field(default_factory=list)

    def begin(self, rows: Sequence[Row], may_draft: Callable[[SequenceState, str], bool]) -> None:
        """A proposer is shown prompts whose pages others may share, and else sequences that it may draft for."""
        if self.drafter is None:
            self.shown = self.drafts = [True] * len(rows)
            return
        name = self.drafter.name
        self.drafts = [may_draft(row.sequence, name) for row in rows]
        self.shown = [
            drafts or (row.start < row.sequence.num_prompt_tokens and row.sequence.replays is None)
            for row, drafts in zip(rows, self.drafts, strict=True)
        ]

    @property
    def sees_any(self) -> bool:
        """Whether it is shown a row of this step."""
        return True in self.shown

    def show(self, rows: Sequence[Row], verdicts: Sequence[Verdict | None], features: Tensor | None) -> None:
        if self.drafter is not None and False in self.shown:
            for row, verdict, is_shown in zip(rows, verdicts, self.shown, strict=True):
                if not is_shown:
                    num_accepted = len(verdict.path) if verdict is not None else 0
                    self.drafter.miss(row.sequence, row.start, row.start + row.num_tokens + num_accepted)
        if features is not None and self.sees_any:
            self.consumer.take(_shown(rows, verdicts, features, self))


class Showing:
    """Cuts features [tokens, all taps * hidden] into what each consumer asked for, row by row.

    A consumer that raises costs drafts, never a request: it is logged and counted.
    """

    def __init__(self, consumers: Sequence[FeatureConsumer] = (), *, taps_always: bool = False) -> None:
        """`taps_always`: of a model whose passes take another path with taps than without, so that one is kept to."""
        self._viewers = [_viewer(consumer) for consumer in consumers]
        self._taps_always = taps_always
        self._tapped: list[_Viewer] = []  # those whose layers this step taps
        self.num_failures = 0

    @property
    def taps(self) -> tuple[int, ...]:
        """Layers whose input somebody may want to see, consumer by consumer."""
        return tuple(tap for viewer in self._viewers for tap in viewer.consumer.taps)

    def exchange(self, old: FeatureConsumer | None, new: FeatureConsumer | None) -> None:
        """Between two steps, show the hidden states to `new` in the place of `old`."""
        others = [viewer for viewer in self._viewers if viewer.consumer is not old]
        self._viewers = [*([_viewer(new)] if new is not None else []), *others]

    def begin(self, rows: Sequence[Row], may_draft: Callable[[SequenceState, str], bool]) -> tuple[int, ...]:
        """Settle who is shown which rows of a step, before its pass; return the layers that the pass is to tap.

        `may_draft(sequence, name)`: whether the proposer of that name may draft for the sequence.
        """
        for viewer in self._viewers:
            viewer.begin(rows, may_draft)
        self._tapped = [viewer for viewer in self._viewers if self._taps_always or viewer.sees_any]
        return tuple(tap for viewer in self._tapped for tap in viewer.consumer.taps)

    def show(self, rows: Sequence[Row], verdicts: Sequence[Verdict | None], features: Tensor | None) -> None:
        """Show what the step computed, `features` being of the layers that `begin` returned; before it is committed."""
        num_taps = sum(len(viewer.consumer.taps) for viewer in self._tapped)
        hidden = features.shape[1] // num_taps if features is not None else 0
        left = 0
        for viewer in self._viewers:
            seen = None
            if features is not None and viewer in self._tapped:
                right = left + len(viewer.consumer.taps) * hidden
                seen, left = features[:, left:right], right
            try:
                viewer.show(rows, verdicts, seen)
            except Exception:  # contained: see above
                self.num_failures += 1
                log.exception("features_not_taken", consumer=type(viewer.consumer).__name__)

    def forget(self, sequences: Sequence[SequenceState]) -> None:
        """Tell those who draft which sequences ended, those they were never asked for too."""
        for viewer in self._viewers:
            if viewer.drafter is not None:
                for sequence in sequences:
                    viewer.drafter.forget(sequence)


def _viewer(consumer: FeatureConsumer) -> _Viewer:
    return _Viewer(consumer, consumer if isinstance(consumer, DraftingConsumer) else None)


def _shown(rows: Sequence[Row], verdicts: Sequence[Verdict | None], features: Tensor, viewer: _Viewer) -> list[Shown]:
    shown: list[Shown] = []
    first = 0
    for row, verdict, is_shown, drafts in zip(rows, verdicts, viewer.shown, viewer.drafts, strict=True):
        if not is_shown:
            first += row.num_rows
            continue
        end = first + row.num_tokens
        tokens, seen = row.sequence.tokens[row.start : row.start + row.num_tokens], features[first:end]
        path = verdict.path if verdict is not None and row.draft is not None else ()
        if path and row.draft is not None:
            tokens = [*tokens, *(row.draft.tokens[node] for node in path)]
            if path[-1] == len(path) - 1:  # the principal chain: its rows follow on
                seen = features[first : end + len(path)]
            else:
                seen = features.index_select(0, torch.tensor([*range(first, end), *(end + node for node in path)]))
        shown.append(Shown(row.sequence, row.start, tokens, seen, drafts))
        first += row.num_rows
    return shown
