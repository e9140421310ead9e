"""Contains calls into proposers: a fault costs drafts and is counted, and never reaches a request."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import structlog

from prolepsis.core.messages import SetCorpora
from prolepsis.core.stats import ProposerMemory
from prolepsis.engine.drafting.call_watch import CallWatch, WatchedCall
from prolepsis.engine.drafting.draft import Draft
from prolepsis.engine.drafting.ledger import Ledger
from prolepsis.engine.drafting.proposer import Proposer, SequenceView

log = structlog.get_logger(__name__)

_OVERDUE_BACKOFF = 256  # steps after an overdue call; its breaker opens earlier
_MOST_FORGOTTEN = 4096  # sequences that a proposer may miss the end of while a call of it is overdue
_TOLERATED = 3  # failed calls in a row before the proposer backs off
_FIRST_BACKOFF = 16  # steps; doubles with every further failure
_LONGEST_BACKOFF = 1024


_Asked = tuple[SequenceView, int, int]  # with depth and limit
Fault = Callable[[Sequence[Draft | None]], Sequence[Draft | None]]


class ContainedProposer:
    """One proposer with its counters; it backs off for some steps after several failures in a row."""

    def __init__(
        self,
        proposer: Proposer,
        vocab_size: int,
        clock: Callable[[], float] = time.perf_counter,
        ledger: Ledger | None = None,
        watch: CallWatch | None = None,
    ) -> None:
        self.name = proposer.name
        self.free = proposer.free
        self.one_pass = proposer.one_pass
        self.by_tenant = proposer.by_tenant
        self.takes_states = bool(proposer.aux_layers)
        self.num_failures = 0
        self.seconds = 0.0
        self._proposer = proposer
        self._vocab_size = vocab_size
        self._clock = clock
        self._ledger = ledger or Ledger([proposer.name])
        self._failed_in_row = 0
        self._backoff = 0
        self._watch = CallWatch() if watch is None or proposer.shares_target else watch
        self._overdue: WatchedCall | None = None
        self.fault: Fault | None = None  # makes calls for drafts fail, while a drill runs
        self.is_lent = False
        self._missed: list[SequenceView] = []  # sequences that ended while a call was overdue
        self.learns = type(proposer).commit is not Proposer.commit
        """Whether its `commit` is called with committed tokens."""

    def drill(self, fault: Fault | None) -> None:
        """Have calls for drafts fail from now on; None: no more, and it need not back off for those that did."""
        self.fault, self._failed_in_row, self._backoff = fault, 0, 0

    def serves(self, sequence: SequenceView) -> bool:
        """Return whether the proposer may draft for the sequence; one that raises is called, and fails there."""
        try:
            return self._proposer.serves(sequence)
        except Exception:  # contained: its draft fails and is counted
            return True

    @property
    def is_out(self) -> bool:
        return self._backoff > 0 or self._overdue is not None or self.is_lent

    def backs_off(self) -> bool:
        """Count a step and return whether the proposer backs off in it; an overdue call of it may not be back yet."""
        if self._backoff:
            self._backoff -= 1
            return True
        return self._is_lost()

    def _is_lost(self) -> bool:
        """Whether a call of it is overdue and has not come back, so that it cannot be called."""
        if self._overdue is None:
            return False
        if self._overdue.returned and len(self._missed) < _MOST_FORGOTTEN:
            self._overdue, missed, self._missed = None, self._missed, []
            self._ledger.find(self.name)
            for sequence in missed:
                self.forget(sequence)
            return False
        return True

    def lose(self, call: WatchedCall) -> None:
        """Count an overdue call of it, and do without the proposer until the call comes back, if ever."""
        self._overdue = call
        self.num_failures += 1
        self._backoff = _OVERDUE_BACKOFF
        self._ledger.lose(self.name, [sequence.traffic_class for sequence in call.sequences])
        log.warning("proposer_overdue", proposer=self.name, sequences=len(call.sequences))

    def propose(
        self,
        sequences: Sequence[SequenceView],
        depths: Sequence[int],
        limits: Sequence[int] | None = None,
        threshold: float = 0.0,
    ) -> list[Draft | None]:
        """Return one sound draft or None per sequence; a batch that raises is asked again row by row.

        The arguments are those of `Proposer.propose_trees`.
        """
        rows = list(zip(sequences, depths, limits or depths, strict=True))
        started = self._clock()
        call = self._watch.enter(self, sequences)
        drafts = self._ask(rows, threshold, call)
        self._watch.leave(call)
        self.seconds += self._clock() - started
        return drafts

    def commit(self, sequence: SequenceView, num_new: int) -> None:
        if self.learns and not self._is_lost():
            self._guard(sequence, lambda: self._proposer.commit(sequence, num_new))

    def forget(self, sequence: SequenceView) -> None:
        if not self._is_lost():
            self._guard(sequence, lambda: self._proposer.forget(sequence))
        elif len(self._missed) < _MOST_FORGOTTEN:
            self._missed.append(sequence)

    def take_corpora(self, message: SetCorpora) -> None:
        try:
            self._proposer.take_corpora(message)
        except Exception:  # contained: it drafts from the texts before
            log.exception("corpora_not_taken", proposer=self.name)

    def close(self) -> None:
        try:
            self._proposer.close()
        except Exception:  # contained: nothing is left that it could harm
            log.exception("proposer_close_failed", proposer=self.name)

    def lend(self) -> bool:
        """Have it leave the memory of its cache until `take_back`; False if a call that is overdue may write there."""
        if self._is_lost():
            return False
        self._proposer.lend()
        self.is_lent = True
        return True

    def take_back(self) -> None:
        self._proposer.take_back()
        self.is_lent = False

    def memory(self) -> ProposerMemory:
        memory = self._proposer.memory()
        return replace(memory, lent=memory.kv) if self.is_lent else memory

    def _ask(self, rows: Sequence[_Asked], threshold: float, call: WatchedCall | None) -> list[Draft | None]:
        try:
            sequences, depths, limits = zip(*rows, strict=True)
            drafts = list(self._proposer.propose_trees(sequences, depths, limits, threshold))
            drafts = drafts if self.fault is None else list(self.fault(drafts))
            if len(drafts) != len(rows):
                raise ValueError(f"{len(drafts)} drafts for {len(rows)} sequences")
        except Exception as error:  # contained: a proposer costs speed, never a request
            self._end_if_overdue(call)
            if len(rows) > 1:
                return [draft for each in rows for draft in self._ask([each], threshold, call)]
            self._fail(rows[0][0], f"propose: {error!r}")
            return [None]
        self._end_if_overdue(call)
        checked = [self._checked(draft, *each) for draft, each in zip(drafts, rows, strict=True)]
        if any(draft is not None for draft in checked):
            self._failed_in_row = 0
        return checked

    def _end_if_overdue(self, call: WatchedCall | None) -> None:
        """Raise `Superseded` before anything is counted, as another thread counts by now."""
        if call is not None and not call.is_open:
            self._watch.leave(call)

    def _checked(self, draft: Draft | None, sequence: SequenceView, depth: int, limit: int) -> Draft | None:
        if draft is None:
            return None
        try:
            fault = draft.fault(self._vocab_size, limit)
            if fault is None and (draft.proposer != self.name or draft.sources):
                fault = f"draft is signed {draft.proposer!r} {draft.sources}"
        except Exception as error:  # contained: nonsense may be of any shape
            fault = repr(error)
        if fault is None:
            self._ledger.succeed(self.name, sequence.traffic_class)
            return draft if draft.tokens else None
        self._fail(sequence, f"draft: {fault}")
        return None

    def _guard(self, sequence: SequenceView, verb: Callable[[], None]) -> None:
        started = self._clock()
        call = self._watch.enter(self, [sequence])
        fault = ""
        try:
            verb()
        except Exception as error:  # contained: see propose
            fault = repr(error)
        self._watch.leave(call)
        if fault:
            self._fail(sequence, fault)
        self.seconds += self._clock() - started

    def _fail(self, sequence: SequenceView, what: str) -> None:
        self.num_failures += 1
        self._ledger.fail(self.name, sequence.traffic_class)
        self._failed_in_row += 1
        excess = self._failed_in_row - _TOLERATED
        if excess >= 0:
            self._backoff = min(_LONGEST_BACKOFF, _FIRST_BACKOFF << min(excess, 10))
            log.warning("proposer_backs_off", proposer=self.name, steps=self._backoff, failure=what)
