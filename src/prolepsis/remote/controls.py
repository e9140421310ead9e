"""What all engines have in common: the plan, the stopped runs of rollouts, the corpora and the draft heads."""

import asyncio

import structlog

from prolepsis.core.config import HeadProposerName
from prolepsis.core.engine_client import EngineClient, HeadSwapped
from prolepsis.core.errors import ProlepsisError
from prolepsis.core.messages import ApplyPlan, SetCorpora, StopRun
from prolepsis.core.plan import SpecPlan

log = structlog.get_logger(__name__)


class RemoteControls:
    """They reach engines that start later, too."""

    def __init__(self) -> None:
        self.plan: SpecPlan | None = None
        self.stopped: dict[str, None] = {}
        """Runs of rollouts, in order."""
        self.corpora: dict[str, SetCorpora] = {}
        """By owner."""
        self.heads: dict[HeadProposerName, str] = {}
        """Draft heads by proposer; empty: the heads that the engines start with."""
        self.swapping = asyncio.Lock()
        """Held while heads change, so that an engine that joins meanwhile gets the new ones."""

    def note(self, control: ApplyPlan | StopRun | SetCorpora) -> None:
        """Remember what engines that start later need to know."""
        match control:
            case ApplyPlan(plan):
                self.plan = plan
            case StopRun(run):
                self.stopped[run] = None
            case SetCorpora(owner, texts):
                self.corpora.pop(owner, None)
                if texts:
                    self.corpora[owner] = control

    def swapped(self, name: str, proposer: HeadProposerName, result: HeadSwapped) -> None:
        """Remember a head: by its version, as an alias may stand for another one later, or by its folder."""
        self.heads[proposer] = name if "/" in name else result.current or "none"

    async def bring_up_to_date(self, client: EngineClient) -> None:
        """Prepare an engine that has just started. A head that cannot be used any more costs drafts, not the engine."""
        async with self.swapping:
            for proposer, head in list(self.heads.items()):
                if head != (client.info.heads.get(proposer) or "none"):
                    await self._swap(client, head, proposer)
            if self.plan is not None:  # last: it may have changed while a head was loaded
                client.send(ApplyPlan(self.plan))
            for name in self.stopped:
                client.send(StopRun(name))
            for corpora in self.corpora.values():
                client.send(corpora)

    async def _swap(self, client: EngineClient, head: str, proposer: HeadProposerName) -> None:
        try:
            await client.swap_head(head, proposer)
        except ProlepsisError as error:
            log.warning("head_not_restored", proposer=proposer, head=head, error=str(error))
