"""Figures that an engine reports of its steps, its requests and their faults."""

from collections.abc import Mapping
from typing import Literal, Protocol

from prolepsis.core.messages import LearnedAcceptance
from prolepsis.core.rounds import RemoteRounds
from prolepsis.core.stats import RequestStats
from prolepsis.core.tagged import Tagged

FaultKind = Literal[
    "proposer",  # calls of a proposer raised or returned nonsense
    "contained",  # deciding about drafts, learning from steps or counting them raised, and no request failed for it
    "grammar",  # a request failed because its grammar gave up
    "not_finite",  # a request failed because the model computed no numbers for its next token
]


class StepDone(Tagged, frozen=True):
    """A step ran a pass of `num_tokens` tokens; `seconds` by phase."""

    seconds: Mapping[str, float]
    num_tokens: int


class RequestDone(Tagged, frozen=True):
    """An accepted request got its terminal event."""

    stats: RequestStats


class FaultCount(Tagged, frozen=True):
    """Faults since the last report."""

    kind: FaultKind
    name: str = ""  # the proposer, or the part of the engine in which they were contained
    number: int = 1


Figure = StepDone | RequestDone | FaultCount | RemoteRounds | LearnedAcceptance


class EngineObserver(Protocol):
    """Called from the engine thread, after each step; must be quick. What it raises costs figures, and is counted.

    `core.telemetry.metrics.Metrics` implements it.
    """

    def observe(self, figure: Figure) -> None: ...
