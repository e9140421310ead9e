"""One round of speculation, proposing a draft and verifying it, as it is shown to people."""

from typing import Literal, NamedTuple

MAX_ROUNDS = 64
"""Rounds of a request that are kept; of the later ones its sums tell."""

RoundOutcome = Literal["accepted", "partly_accepted", "rejected"]


class Round(NamedTuple):
    """A step that verified a draft; times in seconds, the first two since the request's arrival.

    A named tuple, as it is made in a fifth of the time of a frozen dataclass, while the engine waits.
    """

    began: float
    ended: float
    propose_s: float
    """Making the drafts of the step, those of other requests included; so are the next two."""
    forward_s: float
    verify_s: float
    sample: int
    position: int
    """Output position of the first token that it emitted, from 0."""
    proposer: str
    """Of a merged draft all, joined by "+"."""
    version: str
    """Of the draft head that drafted; empty without one."""
    num_nodes: int
    """Draft tokens in the pass: all nodes of the tree."""
    num_draft_tokens: int
    """Of the longest path."""
    num_accepted: int
    num_emitted: int

    @property
    def outcome(self) -> RoundOutcome:
        if not self.num_accepted:
            return "rejected"
        return "accepted" if self.num_accepted == self.num_draft_tokens else "partly_accepted"
