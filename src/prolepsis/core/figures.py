"""Figures that an engine reports of its steps, its requests and their faults."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from prolepsis.core.rounds import RemoteRounds
from prolepsis.core.stats import RequestStats

FaultKind = Literal[
    "proposer",  # calls of a proposer raised or returned nonsense
    "contained",  # deciding about drafts, learning from steps or counting them raised, and no request failed for it
    "grammar",  # a request failed because its grammar gave up
    "not_finite",  # a request failed because the model computed no numbers for its next token
]


@dataclass(frozen=True, slots=True)
class StepDone:
    """A step ran a pass of `num_tokens` tokens; `seconds` by phase."""

    seconds: Mapping[str, float]
    num_tokens: int


@dataclass(frozen=True, slots=True)
class RequestDone:
    """An accepted request got its terminal event."""

    stats: RequestStats


@dataclass(frozen=True, slots=True)
class FaultCount:
    """Faults since the last report."""

    kind: FaultKind
    name: str = ""
    """The proposer, or the part of the engine in which they were contained."""
    number: int = 1


Figure = StepDone | RequestDone | FaultCount | RemoteRounds
