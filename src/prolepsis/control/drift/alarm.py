"""What was noticed of a proposer in a slice, for logs, the audit log and people."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "drift",  # acceptance at position 1 fell for good
    "divergence",  # the proposer promises more than the target confirms, and more so than before
    "cliff",  # acceptance fell to nearly nothing at once: possible corruption
    "recovered",  # a cliff is over
]
Status = Literal["learning", "steady", "drifted", "cliff"]
STATUSES: tuple[Status, ...] = ("learning", "steady", "drifted", "cliff")
KINDS: tuple[Kind, ...] = ("drift", "divergence", "cliff", "recovered")


@dataclass(frozen=True, slots=True)
class DriftAlarm:
    """`before` and `after`: acceptance of first drafted tokens; of a divergence, by how much it is overestimated."""

    at: float
    """Seconds of the clock that the watch runs on."""
    proposer: str
    slice: str
    version: str
    kind: Kind
    before: float
    after: float
    num_judged: int
    """Drafts judged since the version was put in."""
