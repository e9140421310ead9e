"""Rounds of speculation, in which a draft is proposed and verified; and the outcomes of a remote proposer's drafts."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from prolepsis.core.tagged import Tagged

MAX_ROUNDS = 64  # rounds of a request that are kept; later ones are in its sums only

RoundOutcome = Literal["accepted", "partly_accepted", "rejected"]


class Round(NamedTuple):
    """A step that verified a draft; times in seconds, the first two since the request's arrival.

    A named tuple, as it is made in a fifth of the time of a frozen dataclass, while the engine waits.
    """

    began: float
    ended: float
    propose_s: float  # making the drafts of the step, including other requests'; so are the next two
    forward_s: float
    verify_s: float
    sample: int
    position: int  # output position of the first token that it emitted, from 0
    proposer: str  # of a merged draft all, joined by "+"
    version: str  # version of the draft head that drafted; empty without one
    num_nodes: int  # draft tokens in the pass: all nodes of the tree
    num_draft_tokens: int  # draft tokens of the longest path
    num_accepted: int
    num_emitted: int

    @property
    def num_rejected(self) -> int:
        return self.num_draft_tokens - self.num_accepted

    @property
    def has_next(self) -> bool:
        """The target added a token of its own: recovered after a rejection, else the bonus."""
        return self.num_emitted > self.num_accepted

    @property
    def outcome(self) -> RoundOutcome:
        if not self.num_accepted:
            return "rejected"
        return "accepted" if self.num_accepted == self.num_draft_tokens else "partly_accepted"


RemoteOutcome = Literal[
    "used",  # some of it was proposed
    "empty",  # the server had none
    "late",  # its tokens were committed already, its sequence had ended, or a newer draft overtook it
    "stale",  # other tokens had been committed
    "failed",  # the connection was lost
]


class RemoteRounds(Tagged, frozen=True):
    """Rounds since the last report."""

    is_connected: bool
    outcomes: Mapping[RemoteOutcome, int]  # number of drafts by outcome
    seconds: Sequence[float]
    """Duration of each answered round, from when it was sent until the engine saw its answer."""
