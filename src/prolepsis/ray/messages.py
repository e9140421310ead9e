"""What replicas and front doors tell each other; frozen values, as everything that travels between processes."""

from dataclasses import dataclass

from prolepsis.core.config import HeadProposerName
from prolepsis.core.exact_group import ExactGroup
from prolepsis.core.plan import SpecPlan
from prolepsis.engine.process.messages import Observed, Status


@dataclass(frozen=True, slots=True)
class ControlState:
    """What a front door has told its engines. It travels with each request too, so that none decodes under less.

    A replica that started later learns it from its first request.
    """

    door: str = ""
    """The front door that says so."""
    tokenizer: str = ""
    """Its fingerprint: what the door's token ids mean."""
    version: int = 0
    """Rises with each change."""
    plan: SpecPlan | None = None
    stopped_runs: tuple[str, ...] = ()
    heads: tuple[tuple[HeadProposerName, str], ...] = ()
    """Draft heads in use, by proposer; without an entry, the one the engine started with."""


@dataclass(frozen=True, slots=True)
class Began:
    """What serves a request: comes before its events."""

    group: ExactGroup
    max_model_len: int


@dataclass(frozen=True, slots=True)
class Report:
    """How one replica is."""

    replica: str
    """Its name, which ends with it."""
    status: Status
    observed: tuple[Observed, ...]
    """What its engine's observer was told since the last report, to any front door: each call counts at one of them."""
    num_unreported: int
    """Calls that were dropped, as no front door asked for too long."""
