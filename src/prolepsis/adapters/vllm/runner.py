"""Runs a step's rows as a pass of a data plane, which decides itself how much of each prompt is computed."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from prolepsis.adapters.vllm.data_plane import ComputedRow, DataPlane
from prolepsis.core.errors import StepFailed
from prolepsis.engine.request import SequenceState
from prolepsis.engine.rows import Row, SampledTokens
from prolepsis.engine.runner import Computed

_VOID = (0,)
"""Emitted for a sequence whose grammar failed: it ends here, and what the data plane thinks of it is void."""


class DataPlaneRunner:
    """A `PassRunner`: keeps the sequences of the data plane equal to those that our scheduler runs."""

    def __init__(self, plane: DataPlane, running: Callable[[], Sequence[SequenceState]]) -> None:
        self.plane = plane
        self._running = running
        self._known: dict[str, SequenceState] = {}
        """What the data plane holds. Another request may come with the id of one that has just ended."""
        self._is_open = False
        """A pass was computed and not finished."""

    def forward(self, rows: Sequence[Row], aux_layers: tuple[int, ...] = ()) -> Computed:
        """Return the logits with the rows that were computed; drafts are chains."""
        assert not aux_layers, "no hidden states come from a data plane"
        if self._is_open:  # a step failed: what the data plane holds is not to be trusted
            self.plane.reset()
            self._known.clear()
        sequences = {sequence.key: sequence for sequence in self._running()}
        gone = sorted(key for key, sequence in self._known.items() if sequences.get(key) is not sequence)
        if gone:
            self.plane.remove(gone)
        for key, sequence in sequences.items():
            if self._known.get(key) is not sequence:
                salt = sequence.cache_salt if sequence.replays is None else key  # a replay reuses nothing
                self.plane.add(key, sequence.tokens, salt)
        self._known = dict(sequences)
        planned = {row.sequence.key: row for row in rows}
        self._is_open = True
        computed = self.plane.compute({key: row.draft.tokens for key, row in planned.items() if row.draft is not None})
        if not computed.rows:
            raise StepFailed(f"no sequence of {len(sequences)} was scheduled")
        actual = [_row(sequences[row.key], row, planned.get(row.key)) for row in computed.rows]
        return Computed(computed.logits, rows=actual)

    def compact(self, rows: Sequence[Row], sampled: Sequence[SampledTokens | None]) -> None:
        """Let the data plane go on with the sampled tokens."""
        pairs = zip(rows, sampled, strict=True)
        self.plane.finish({row.sequence.key: drawn.tokens or _VOID for row, drawn in pairs if drawn is not None})
        self._is_open = False


def _row(sequence: SequenceState, computed: ComputedRow, planned: Row | None) -> Row:
    """Return the row as it was computed, with as much of its draft as had room."""
    row = Row(sequence, computed.start, computed.num_tokens)
    assert row.samples_next == computed.samples_next, f"{sequence.key} has other tokens in the data plane"
    if planned is None or not row.samples_next:
        return row
    if planned.draft is None:
        return replace(planned, start=row.start, num_tokens=row.num_tokens)
    assert planned.draft.is_chain, "a data plane verifies chains"
    if computed.num_draft_tokens == 0:
        return replace(row, plain="no_capacity")
    return replace(row, draft=planned.draft.cut(computed.num_draft_tokens))
