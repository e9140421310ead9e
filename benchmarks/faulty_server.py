"""`prolepsis serve` with a fault that begins when a file appears: plugs that the product does not have.

Usage: python -m benchmarks.faulty_server FAULT FILE [option of `prolepsis serve` ...]

FAULT:
- hanging-proposer: a free proposer, in the place of `prediction`, whose calls no longer return.
- hanging-head: the draft head, which computes with the target's threads, does not return from its next call.
- unverified: a kernel of verification that takes the first drafted token for right.
"""

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from prolepsis.engine import build
from prolepsis.engine.drafting.draft import Draft
from prolepsis.engine.drafting.proposer import Proposer, SequenceView
from prolepsis.engine.drafting.proposers.head import HeadProposer
from prolepsis.engine.rows import Row, SampledTokens
from prolepsis.engine.runner import Computed
from prolepsis.engine.verification import Verification
from prolepsis.server.cli.main import app

PLACE = "prediction"


def hanging_proposer(begun: Path) -> None:
    class Hanging(Proposer):
        name = PLACE
        free = True

        def propose(self, sequences: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft | None]:
            if begun.exists():
                threading.Event().wait()
            return [None] * len(sequences)

    build.FREE_PROPOSERS[PLACE] = lambda *_: Hanging()


def hanging_head(begun: Path) -> None:
    class Hanging(HeadProposer):
        def propose_trees(
            self, sequences: Sequence[SequenceView], depths: Sequence[int], limits: Sequence[int], threshold: float
        ) -> list[Draft | None]:
            if begun.exists():
                threading.Event().wait()
            return super().propose_trees(sequences, depths, limits, threshold)

    setattr(build, HeadProposer.__name__, Hanging)


def unverified(begun: Path) -> None:
    class Unverified(Verification):
        def verify(self, rows: Sequence[Row], computed: Computed) -> list[SampledTokens | None]:
            return super().verify(rows, _in_favour_of_drafts(rows, computed) if begun.exists() else computed)

    setattr(build, Verification.__name__, Unverified)


def _in_favour_of_drafts(rows: Sequence[Row], computed: Computed) -> Computed:
    """Return the pass as if the target were sure of each draft's first token."""
    logits, first_row = computed.logits.clone(), 0
    for row in rows:
        if row.samples_next:
            if row.draft is not None:
                logits[first_row, row.draft.tokens[0]] = logits[first_row].max() + 100.0
            first_row += 1 + (len(row.draft.tokens) if row.draft is not None else 0)
    return replace(computed, logits=logits, argmax=None)


FAULTS: dict[str, Callable[[Path], None]] = {
    "hanging-proposer": hanging_proposer,
    "hanging-head": hanging_head,
    "unverified": unverified,
}


def main() -> None:
    fault, file = sys.argv[1:3]
    FAULTS[fault](Path(file))
    sys.argv[1:3] = ["serve"]
    app()


if __name__ == "__main__":
    main()
