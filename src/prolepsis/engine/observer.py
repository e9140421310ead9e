"""The interface through which an engine reports its steps; `telemetry.metrics.Metrics` implements it."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from prolepsis.core.errors import GrammarFailed, NotFinite
from prolepsis.core.events import Event, Failed, Terminal
from prolepsis.core.rounds import RemoteRounds
from prolepsis.core.stats import RequestStats
from prolepsis.engine.containment import ContainedPart, Containment
from prolepsis.engine.timings import StepTiming

if TYPE_CHECKING:
    from prolepsis.spec.choose import ProposerSet


class EngineObserver(Protocol):
    """Called from the engine thread, after each step; must be quick. What it raises costs figures, and is counted."""

    def step_done(self, seconds: Mapping[str, float], num_tokens: int) -> None:
        """A step ran a pass of `num_tokens` tokens; `seconds` by phase."""

    def request_ended(self, stats: RequestStats) -> None:
        """An accepted request got its terminal event."""

    def proposer_failed(self, proposer: str, num_failures: int = 1) -> None:
        """Calls of a proposer raised or returned nonsense."""

    def fault_contained(self, part: ContainedPart, num_faults: int = 1) -> None:
        """Deciding about drafts, learning from steps or counting them raised, and no request failed for it."""

    def grammar_failed(self) -> None:
        """A request failed because its grammar gave up."""

    def logits_not_finite(self) -> None:
        """A request failed because the model computed no numbers for its next token."""

    def remote_rounds(self, rounds: RemoteRounds) -> None:
        """The remote proposer asked for drafts, got some, or lost its server."""


class Reporter:
    """Reports each step and ended request to an observer, if there is one."""

    def __init__(self, observer: EngineObserver | None, proposers: "ProposerSet", contained: Containment) -> None:
        self._observer = observer
        self._proposers = proposers
        self._contained = contained
        self._failures: dict[str, int] = {}
        self._faults: dict[ContainedPart, int] = {}

    def step(self, timing: StepTiming) -> None:
        """Report one step."""
        if self._observer is None:
            return
        with self._contained.of("figures"):
            self._observer.step_done(timing.phases(), timing.num_tokens)
            for name, count in self._proposers.failures.items():
                new = count - self._failures.get(name, 0)
                if new or name not in self._failures:  # an alert on a rise needs the 0 before it
                    self._failures[name] = count
                    self._observer.proposer_failed(name, new)

    def ended(self, events: Iterable[Event]) -> None:
        """Report the requests whose terminal event is among `events`, and what was contained until now."""
        if self._observer is None:
            return
        for event in events:
            with self._contained.of("figures"):
                if isinstance(event, Failed) and isinstance(event.error, GrammarFailed):
                    self._observer.grammar_failed()
                if isinstance(event, Failed) and isinstance(event.error, NotFinite):
                    self._observer.logits_not_finite()
                if isinstance(event, Terminal):
                    self._observer.request_ended(event.stats)
        with self._contained.of("figures"):
            for part, count in self._contained.num_faults.items():
                new = count - self._faults.get(part, 0)
                if new or part not in self._faults:
                    self._faults[part] = count
                    self._observer.fault_contained(part, new)
