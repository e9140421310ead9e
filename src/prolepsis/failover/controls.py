"""What engines were told, for those that are started later."""

import structlog

from prolepsis.core.config import HeadProposerName
from prolepsis.core.errors import ProlepsisError
from prolepsis.core.plan import SpecPlan
from prolepsis.engine.client import EngineClient, HeadSwapped

log = structlog.get_logger(__name__)


class Controls:
    """The plan, the stopped runs and the draft heads that all engines have."""

    def __init__(self) -> None:
        self.plan: SpecPlan | None = None
        self.stopped: dict[str, None] = {}
        """Runs of rollouts, in order."""
        self.heads: dict[HeadProposerName, str] = {}
        """By proposer; empty: those that the engines start with."""

    def swapped(self, name: str, proposer: HeadProposerName, result: HeadSwapped) -> None:
        """Remember a head: by its version, as an alias may stand for another one later, or by its folder."""
        self.heads[proposer] = name if "/" in name else result.current or "none"

    async def bring_up_to_date(self, client: EngineClient) -> None:
        """Tell an engine that was just started. A head that cannot be used any more costs drafts, not the engine."""
        if self.plan is not None:
            client.apply_plan(self.plan)
        for name in self.stopped:
            client.stop_run(name)
        for proposer, head in self.heads.items():
            try:
                await client.swap_head(head, proposer)
            except ProlepsisError as error:
                log.warning("head_not_restored", proposer=proposer, head=head, error=str(error))
