"""What replicas and front doors tell each other: frozen values, pickled.

front door                      replica
over Ray, to all replicas:
heads, swap_head, report  -->   (`EngineReplica`)
over a connection to each (`prolepsis.ray.connection`):
                          <--   Hello
ControlState              -->                             (first, and whenever it changes)
Generate, Leave           -->
                          <--   Streamed, Refused         (`prolepsis.engine.process.messages`)
Abort, OfferDraft         -->
                          <--   Beat, Leaving, Figures
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import get_args, get_type_hints

from prolepsis import __version__
from prolepsis.core.config import HeadProposerName
from prolepsis.core.exact_group import ExactGroup
from prolepsis.core.messages import Abort, OfferDraft
from prolepsis.core.plan import SpecPlan
from prolepsis.core.rounds import RemoteRounds
from prolepsis.engine.process.messages import Generate, Leave, Observed, Refused, Status, Streamed


@dataclass(frozen=True, slots=True)
class Address:
    """Where a replica takes requests, and the secret that those who may ask know."""

    host: str
    port: int
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ControlState:
    """What a front door has told its engines: also those that start later, before their first request."""

    door: str = ""
    """The front door that says so."""
    version: int = 0
    """Rises with each change."""
    plan: SpecPlan | None = None
    stopped_runs: tuple[str, ...] = ()
    heads: tuple[tuple[HeadProposerName, str], ...] = ()
    """Draft heads in use, by proposer; without an entry, the one the engine started with."""
    swap: int = 0
    """Number of the last swap among these heads: replicas are asked for it over Ray, earlier or later."""

    def with_head(self, swap: int, proposer: HeadProposerName, name: str) -> "ControlState":
        """Return it with another draft head of a proposer."""
        others = (one for one in self.heads if one[0] != proposer)
        return replace(self, heads=(*others, (proposer, name)), swap=max(swap, self.swap))


@dataclass(frozen=True, slots=True)
class Hello:
    """What serves requests on a connection."""

    group: ExactGroup
    max_model_len: int


@dataclass(frozen=True, slots=True)
class Beat:
    """The replica lives."""

    num_elsewhere: int
    """Requests that other front doors have in it."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """The replica ends once its requests have ended: others are to be asked."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What a leaving replica has to report: Ray Serve does not ask it for reports again."""

    observed: tuple[Observed, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """How one replica is."""

    replica: str
    """Its name, which ends with it."""
    address: Address
    """Where it takes requests."""
    status: Status
    observed: tuple[Observed, ...]
    """What its engine's observer was told since the last report, to any front door: each call counts at one of them.
    Those that the front door has not said that it has come again."""
    first: int
    """Number of the first of these, of all that this front door was told."""
    num_unreported: int
    """Calls that were dropped, as no front door asked for too long."""


def shape_of(messages: Sequence[object]) -> str:
    """Return eight hex digits of a digest of types: their names and fields, and those of the types of these fields.

    A pickle holds the values of fields without their names, so that a field that was moved is misread.
    """
    shapes: dict[type, str] = {}
    waiting = list(messages)
    while waiting:
        one = waiting.pop()
        waiting += get_args(one)
        if isinstance(one, type) and one not in shapes and one.__module__.startswith("prolepsis"):
            fields = get_type_hints(one)
            shapes[one] = f"{one.__module__}.{one.__qualname__}: {fields}"
            waiting += fields.values()
    return sha256("\n".join(sorted(shapes.values())).encode()).hexdigest()[:8]


_SENT = (ControlState, Generate, Leave, Abort, OfferDraft)
_RECEIVED = (Hello, Streamed, Refused, Beat, Leaving, Figures, RemoteRounds, Report)  # rounds are told to observers
VERSION = f"{__version__} (messages {shape_of(_SENT + _RECEIVED)})"
"""Doors and replicas of one version read each other's messages."""
