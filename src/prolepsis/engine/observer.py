"""Reports of an engine to its observer."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from prolepsis.core.errors import GrammarFailed, NotFinite
from prolepsis.core.events import Event, Failed, Terminal
from prolepsis.core.figures import EngineObserver, FaultCount, RequestDone, StepDone
from prolepsis.engine.containment import ContainedPart, Containment
from prolepsis.engine.timings import StepTiming

if TYPE_CHECKING:
    from prolepsis.engine.drafting.choose import ProposerSet


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
            self._observer.observe(StepDone(timing.phases(), timing.num_tokens))
            for name, count in self._proposers.failures.items():
                new = count - self._failures.get(name, 0)
                if new or name not in self._failures:  # an alert on a rise needs the 0 before it
                    self._failures[name] = count
                    self._observer.observe(FaultCount("proposer", name, new))

    def ended(self, events: Iterable[Event]) -> None:
        """Report the requests whose terminal event is among `events`, and what was contained until now."""
        if self._observer is None:
            return
        for event in events:
            with self._contained.of("figures"):
                if isinstance(event, Failed) and isinstance(event.error, GrammarFailed):
                    self._observer.observe(FaultCount("grammar"))
                if isinstance(event, Failed) and isinstance(event.error, NotFinite):
                    self._observer.observe(FaultCount("not_finite"))
                if isinstance(event, Terminal):
                    self._observer.observe(RequestDone(event.stats))
        with self._contained.of("figures"):
            for part, count in self._contained.num_faults.items():
                new = count - self._faults.get(part, 0)
                if new or part not in self._faults:
                    self._faults[part] = count
                    self._observer.observe(FaultCount("contained", part, new))
