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

from dataclasses import dataclass, replace

from prolepsis.core.config import HeadProposerName
from prolepsis.core.exact_group import ExactGroup
from prolepsis.core.plan import SpecPlan
from prolepsis.engine.process.messages import Observed, Status
from prolepsis.ray.connection import Address


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
    """What a leaving replica has to report: Ray Serve asks it for no more reports."""

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
