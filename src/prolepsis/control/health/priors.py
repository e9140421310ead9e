"""What an engine begins with: how often drafts were accepted before, here or on another server, with the same weights.

Where nothing is known, drafts are as deep as an optimistic guess says until trials show better.
"""

from collections.abc import Mapping

import structlog

from prolepsis.core.config import MERGED
from prolepsis.core.engine_client import EngineClient
from prolepsis.core.messages import LearnedAcceptance
from prolepsis.core.stats import AcceptanceState

Acceptance = Mapping[tuple[str, str], AcceptanceState]
"""By proposer and what it drafts with (`EngineInfo.weights_of`)."""

log = structlog.get_logger(__name__)


class AcceptancePriors:
    """Belongs to one event loop."""

    def __init__(self, client: EngineClient, measured: Acceptance) -> None:
        """`measured`: what engines report, which other threads write."""
        self._client, self._measured = client, measured
        self._begun: dict[str, str] = {}  # by proposer, the weights with which it drafts
        self.stored: Acceptance | None = None  # None: the store was not read yet

    @property
    def measured(self) -> Acceptance:
        return dict(self._measured)

    def follow(self) -> None:
        """Send the engine what is known of proposers that it began to use, or loaded another head for."""
        if self.stored is None:
            return
        info = self._client.info
        for proposer in (*info.proposers, MERGED):
            weights = info.weights_of(proposer)
            if self._begun.get(proposer) == weights:
                continue
            self._begun[proposer] = weights
            place, source = (proposer, weights), "this process"
            if (state := self._measured.get(place)) is None:
                state, source = self.stored.get(place), "the store"
            if state is not None:
                self._client.send(LearnedAcceptance(*place, state))
                log.info("acceptance_begun", proposer=proposer, weights=weights, source=source, number=state.pool[1])
