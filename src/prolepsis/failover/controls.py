"""What engines were told, for those that are started later."""

from prolepsis.core.config import HeadProposerName
from prolepsis.core.plan import SpecPlan
from prolepsis.engine.client import EngineClient


class Controls:
    """The plan, the stopped runs and the draft heads that all engines have."""

    def __init__(self) -> None:
        self.plan: SpecPlan | None = None
        self.stopped: dict[str, None] = {}
        """Runs of rollouts, in order."""
        self.heads: dict[HeadProposerName, str] = {}
        """By proposer; empty: those that the engines start with."""

    async def bring_up_to_date(self, client: EngineClient) -> None:
        """Tell an engine that was just started; raises what keeps it from using a head."""
        if self.plan is not None:
            client.apply_plan(self.plan)
        for name in self.stopped:
            client.stop_run(name)
        for proposer, head in self.heads.items():
            await client.swap_head(head, proposer)
