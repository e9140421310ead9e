"""Faults that drills inject into an engine. While there is none, nothing of this is on the path of a step."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from threading import Event

from prolepsis.core.config import HEAD_PROPOSERS
from prolepsis.core.messages import EngineFault, InjectFault
from prolepsis.engine.drafting.choose import ProposerSet
from prolepsis.engine.drafting.containment import ContainedProposer
from prolepsis.engine.drafting.draft import Draft
from prolepsis.engine.rows import Row, SampledTokens
from prolepsis.engine.runner import Computed, StepVerifier

SLOW_S = 0.3  # how much longer a slow proposer takes: twice the time for which a call is waited, by default


class Faults:
    """Belongs to the engine's thread. It is a `StepVerifier` that plants wrong tokens, where that is the fault."""

    def __init__(self, proposers: ProposerSet, verifier: StepVerifier, vocab_size: int) -> None:
        self._proposers, self._verifier, self._last_token = proposers, verifier, vocab_size - 1
        self._over = Event()

    def inject(self, message: InjectFault) -> StepVerifier:
        """Take back the fault before, begin this one, and return the verifier to use from now on.

        Raises SystemExit where the engine is to die, which ends its thread.
        """
        fault = message.fault
        self._over.set()  # calls that hang come back
        self._over = Event()
        if fault == "die":
            raise SystemExit("a drill")
        for proposer in self._proposers.contained:
            proposer.drill(partial(self._fail, fault, self._over) if _has(proposer, fault) else None)
        return self if fault == "differ" else self._verifier

    def verify(self, rows: Sequence[Row], computed: Computed) -> list[SampledTokens | None]:
        """Verify, and exchange the last token of each row with a draft for one that the target did not say."""
        return list(map(self._planted, rows, self._verifier.verify(rows, computed)))

    def _planted(self, row: Row, sampled: SampledTokens | None) -> SampledTokens | None:
        sequence = row.sequence
        if row.draft is None or sampled is None or not sampled.tokens or sequence.matcher is not None:
            return sampled
        *before, last = sampled.tokens
        planted = self._last_token - last
        return sampled if planted in sequence.end_ids else replace(sampled, tokens=(*before, planted))

    def _fail(self, fault: EngineFault, over: Event, drafts: Sequence[Draft | None]) -> Sequence[Draft | None]:
        """Do to a call that made these drafts what the fault does; a head's say as if its matrix were upside down."""
        if fault == "raise":
            raise RuntimeError("a drill")
        if fault == "damage":
            return [
                draft and replace(draft, tokens=tuple(self._last_token - t for t in draft.tokens)) for draft in drafts
            ]
        over.wait(SLOW_S if fault == "slow" else None)
        return drafts


def _has(proposer: ContainedProposer, fault: EngineFault) -> bool:
    """Return whether the fault is one of the proposer. Costly ones do not hang: some are waited for by the step."""
    is_head = proposer.name in HEAD_PROPOSERS
    return fault in ("slow", "raise") or (fault == "hang" and proposer.free) or (fault == "damage" and is_head)
