"""The client of an engine whose passes run in vLLM."""

import asyncio

from prolepsis.adapters.vllm.data_plane import DataPlane
from prolepsis.core.config import DRAFT_HEAD, HeadProposerName
from prolepsis.core.engine_client import HeadSwapped
from prolepsis.core.errors import InvalidParameter
from prolepsis.engine.step import Engine
from prolepsis.engine.thread import ThreadEngineClient


class VllmEngineClient(ThreadEngineClient):
    """An `EngineClient`: our engine steps in its own thread, and vLLM's scheduler and worker run in that thread too.

    So plans, stopped runs, aborts and deadlines are obeyed at the next step, by requests in flight as well.
    """

    def __init__(self, engine: Engine, plane: DataPlane) -> None:
        super().__init__(engine)
        self._plane = plane

    async def swap_head(self, name: str, proposer: HeadProposerName = DRAFT_HEAD) -> HeadSwapped:
        """Refuse: draft heads need hidden states, which vLLM does not show."""
        raise InvalidParameter(f"{proposer} is {name!r}; allowed with engine vllm: none", param=proposer)

    async def close(self) -> None:
        was_open = self.health().detail != "closed"
        await super().close()
        if was_open and not self.watchdog.gave_up:
            await asyncio.to_thread(self._plane.close)  # it takes seconds, and other engines serve meanwhile
