"""What became of the drafts that a remote proposer was asked for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

RemoteOutcome = Literal[
    "used",  # some of it was proposed
    "empty",  # the server had none
    "late",  # what it said had been committed by then, its sequence had ended, or a newer one overtook it
    "stale",  # other tokens had been committed
    "failed",  # the connection was lost
]


@dataclass(frozen=True, slots=True)
class RemoteRounds:
    """What happened since the last report."""

    is_connected: bool
    outcomes: Mapping[RemoteOutcome, int]
    """Of drafts."""
    seconds: Sequence[float]
    """Of each answered round, from when it was sent until the engine saw its answer."""
