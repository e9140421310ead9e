"""Reports of an engine to its observer."""

from collections.abc import Iterable

from prolepsis.core.config import MERGED
from prolepsis.core.engine_client import EngineInfo
from prolepsis.core.errors import GrammarFailed, NotFinite
from prolepsis.core.events import Event, Failed, Terminal
from prolepsis.core.figures import EngineObserver, FaultCount, FaultKind, RequestDone, StepDone
from prolepsis.core.messages import LearnedAcceptance
from prolepsis.engine.containment import Containment
from prolepsis.engine.drafting.choose import ProposerSet
from prolepsis.engine.timings import StepTiming

_LEARNED_STEPS = 256  # at least, between two reports of what was learned of drafts: one takes milliseconds
_LEARNED_WHILE_BUSY = 2048  # likewise, while requests wait for it


class Reporter:
    """Reports each step and ended request to an observer, if there is one."""

    def __init__(self, observer: EngineObserver | None, proposers: ProposerSet, contained: Containment) -> None:
        self._observer = observer
        self._proposers = proposers
        self._contained = contained
        self._num_steps = 0  # since what was learned of drafts was reported
        self._reported: dict[tuple[FaultKind, str], int] = {}

    def step(self, timing: StepTiming, info: EngineInfo) -> None:
        self._num_steps += 1
        if self._num_steps >= _LEARNED_WHILE_BUSY:
            self.learned(info)
        if self._observer is None:
            return
        with self._contained.of("figures"):
            self._observer.observe(StepDone(timing.phases(), timing.num_tokens))
            self._report_rises(self._observer, "proposer", self._proposers.failures.items())

    def learned(self, info: EngineInfo) -> None:
        """Report what was learned of the drafts of each proposer in the steps since the last report."""
        if self._observer is None or self._num_steps < _LEARNED_STEPS:
            return
        self._num_steps = 0
        with self._contained.of("figures"):
            kept = [each.name for each in self._proposers.contained if not each.by_tenant]
            for proposer in (*kept, MERGED):
                if (state := self._proposers.acceptance.state(proposer)) is not None:
                    self._observer.observe(LearnedAcceptance(proposer, info.weights_of(proposer), state))

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
            self._report_rises(self._observer, "contained", self._contained.num_faults.items())

    def _report_rises(self, observer: EngineObserver, kind: FaultKind, counts: Iterable[tuple[str, int]]) -> None:
        for name, count in counts:
            reported = self._reported.get((kind, name))
            if count != reported:  # also where it is 0 at first: an alert on a rise needs the 0 before it
                self._reported[kind, name] = count
                observer.observe(FaultCount(kind, name, count - (reported or 0)))
