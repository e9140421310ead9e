"""The interface through which an engine reports its steps; `telemetry.metrics.Metrics` implements it."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from prolepsis.core.errors import GrammarFailed
from prolepsis.core.events import Event, Failed, Terminal
from prolepsis.core.rounds import RemoteRounds
from prolepsis.core.stats import RequestStats
from prolepsis.engine.timings import StepTiming
from prolepsis.spec.choose import ProposerSet


class EngineObserver(Protocol):
    """Called from the engine thread, after each step; must be quick and must not raise."""

    def step_done(self, seconds: Mapping[str, float], num_tokens: int) -> None:
        """A step ran a pass of `num_tokens` tokens; `seconds` by phase."""

    def request_ended(self, stats: RequestStats) -> None:
        """An accepted request got its terminal event."""

    def proposer_failed(self, proposer: str, num_failures: int = 1) -> None:
        """Calls of a proposer raised or returned nonsense."""

    def grammar_failed(self) -> None:
        """A request failed because its grammar gave up."""

    def remote_rounds(self, rounds: RemoteRounds) -> None:
        """The remote proposer asked for drafts, got some, or lost its server."""


class Reporter:
    """Reports each step and ended request to an observer, if there is one."""

    def __init__(self, observer: EngineObserver | None, proposers: ProposerSet) -> None:
        self._observer = observer
        self._proposers = proposers
        self._failures: dict[str, int] = {}

    def step(self, timing: StepTiming) -> None:
        """Report one step."""
        if self._observer is None:
            return
        self._observer.step_done(timing.phases(), timing.num_tokens)
        for name, count in self._proposers.failures.items():
            new = count - self._failures.get(name, 0)
            if new or name not in self._failures:  # an alert on a rise needs the 0 before it
                self._observer.proposer_failed(name, new)
                self._failures[name] = count

    def ended(self, events: Iterable[Event]) -> None:
        """Report the requests whose terminal event is among `events`."""
        if self._observer is None:
            return
        for event in events:
            if isinstance(event, Failed) and isinstance(event.error, GrammarFailed):
                self._observer.grammar_failed()
            if isinstance(event, Terminal):
                self._observer.request_ended(event.stats)
