"""A draft as a rehearsal replays it: its shape, and how far its answer followed it; no token of it."""

from typing import NamedTuple

MAX_RECORDED = 256
"""Drafts of a sample and proposer that are recorded."""


class RecordedDraft(NamedTuple):
    """What a proposer answered when it was asked; without nodes if it had no draft."""

    sample: int
    position: int  # output position of its first token, from 0
    depth: int  # levels that were asked for
    classes: tuple[int, ...] = ()
    """Of each node's token: nodes of one position with equal tokens, whoever drafted them, have equal numbers."""
    parents: tuple[int, ...] = ()  # -1 is the root
    survival: tuple[float, ...] = ()  # the proposer's estimates (`Draft.survival`)
    buckets: tuple[int, ...] = ()
    path: tuple[int, ...] = ()  # the nodes that the answer followed, from the root down
