"""One request that was let in: what to ask of which client, and what came of it."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, replace

from prolepsis.api.admission.response_cache import Answer, replayed
from prolepsis.core.events import Event, Finished, Terminal, Tokens
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.stats import ProposerMemory, TrafficClassCounts
from prolepsis.engine.client import EngineClient, EngineHealth, EngineInfo, HeadSwapped
from prolepsis.web.caller import Caller


@dataclass(frozen=True, slots=True)
class Entry:
    """Ask `client` for `request`, while inside the gate."""

    request: GenerateRequest
    client: "Watched"


class Watched:
    """An `EngineClient` that counts the tokens it passes on, and remembers them where somebody wants that."""

    def __init__(self, client: EngineClient, *, stored: Answer | None = None, keep: bool = False) -> None:
        self.stored = stored
        self.num_tokens = 0
        self.answered = False
        """The engine took the request and said something of it."""
        self.kept: list[Tokens] = []
        self.ended: Terminal | None = None
        """How, where the engine or the stored answer has said so."""
        self._client = client
        self._keep = keep
        self._with_drafts = False

    @property
    def info(self) -> EngineInfo:
        return self._client.info

    @property
    def finished(self) -> Finished | None:
        return self.ended if isinstance(self.ended, Finished) else None

    def keep(self, *, drafts: bool = False) -> None:
        """Remember the tokens of what is asked from here on, with the drafts that were verified."""
        self._keep = True
        self._with_drafts |= drafts

    def num_used(self, request: GenerateRequest) -> int:
        """Return the tokens that count as used: prompt and answer as far as it came, none of what never ran."""
        return len(request.prompt_token_ids) + self.num_tokens if self.answered else 0

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        """Yield the engine's events, or those of the stored answer."""
        if self.stored is not None:
            for stored in replayed(self.stored, request.request_id):
                if not isinstance(stored, Tokens):
                    self.ended = stored
                yield stored
            return
        asked = replace(request, tells_drafts=True) if self._with_drafts else request
        events: AsyncIterator[Event] = self._client.generate(asked)
        try:
            async for event in events:
                self._see(event)
                yield event
        finally:
            if isinstance(events, AsyncGenerator):
                await events.aclose()

    def abort(self, request_id: str) -> None:
        self._client.abort(request_id)

    def apply_plan(self, plan: SpecPlan) -> None:
        self._client.apply_plan(plan)

    def stop_run(self, name: str) -> None:
        self._client.stop_run(name)

    async def swap_head(self, name: str) -> HeadSwapped:
        return await self._client.swap_head(name)

    def health(self) -> EngineHealth:
        return self._client.health()

    def proposer_counts(self) -> Sequence[TrafficClassCounts]:
        return self._client.proposer_counts()

    def proposer_memory(self) -> Sequence[ProposerMemory]:
        return self._client.proposer_memory()

    async def close(self) -> None:
        await self._client.close()

    def _see(self, event: Event) -> None:
        self.answered = True
        if isinstance(event, Tokens):
            self.num_tokens += len(event.token_ids)
            if self._keep:
                self.kept.append(event)
        else:
            self.ended = event


@dataclass(frozen=True, slots=True)
class Member:
    """One prompt."""

    request: GenerateRequest
    watched: Watched
    key: bytes | None
    """Under which its answer may be stored."""

    @property
    def cost(self) -> int:
        """Tokens it may take: prompt and longest answers; none where the answer is stored."""
        request = self.request
        return 0 if self.watched.stored else len(request.prompt_token_ids) + request.n * request.params.max_tokens


@dataclass(frozen=True, slots=True)
class Party:
    """All prompts of one caller's HTTP request."""

    caller: Caller
    members: Sequence[Member]
    deadline_s: float | None

    @property
    def cost(self) -> int:
        return sum(member.cost for member in self.members)

    @property
    def num_used(self) -> int:
        return sum(member.watched.num_used(member.request) for member in self.members)

    @property
    def to_run(self) -> Sequence[Member]:
        """Those whose answers are not stored."""
        return [member for member in self.members if not member.watched.stored]
