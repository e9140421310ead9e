"""The place of one engine among several, and what decides when another takes it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from prolepsis.core.continuation import OutsideGroup
from prolepsis.core.engine_client import EngineClient
from prolepsis.remote.stream import KeptStream

StartClient = Callable[[], Awaitable[EngineClient]]
"""Returns a client of an engine: built in this process, started in another, or connected to. Raises the reason why
there is none."""


class Directory(Protocol):
    """Knows which engines there are, where other programs start and end them."""

    async def engines(self) -> Mapping[str, StartClient]:
        """Return what connects to each engine, by a name that ends with the engine."""

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverSettings:
    """Defaults suit engines of one machine."""

    outside_group: OutsideGroup = "refuse"
    max_losses: int = 3
    """Engines that one request may lose and continue: the request may be what ends them."""
    max_failed_steps: int = 1
    """How many of these losses may be failed steps: the engine lives on, and gives up after several in a row."""
    wait_s: float = 60.0
    """Longest wait of a request for an engine."""
    check_s: float = 0.25
    """Between two checks of the engines' health; an engine that is not alive at two in a row is lost."""
    list_s: float = 0.5
    """Between two looks at the directory."""
    max_restarts: int = 5
    """Starts in a row of one engine, each ended within `steady_s`; after them it stays away."""
    steady_s: float = 60.0
    backoff_s: float = 0.5
    """Before the second start in a row; it doubles, up to 8 s."""


class Member:
    """One engine's place. It is empty while its engine is lost and not started again."""

    def __init__(self, client: EngineClient | None, start: StartClient | None = None, *, listed_as: str = "") -> None:
        """Without `start` a lost engine stays away. `listed_as`: its name in the directory that it is from."""
        self.client = client
        self.start = start
        self.listed_as = listed_as
        self.streams: set[KeptStream] = set()
        self.is_suspect = False
        """Its engine was not alive at the last check."""
        self.detail = ""
        """Reason why the place is empty."""
        self.num_starts = 0
        """Starts in a row."""
        self.serves_since = -float("inf")
        """Since when it had its engine."""

    @property
    def engine(self) -> EngineClient:
        """Its engine, where one is there."""
        assert self.client is not None, "the place is not empty"
        return self.client

    @property
    def takes_requests(self) -> bool:
        if self.client is None:
            return False
        health = self.client.health()
        return health.alive and not health.is_leaving

    @property
    def load(self) -> int:
        """Requests in its engine."""
        return len(self.streams) + self.engine.health().num_elsewhere

    @property
    def absence(self) -> str:
        """Why it has no engine, in words."""
        if self.listed_as:
            return self.detail
        return f"{'starting the engine again' if self.start else 'the engine stays away'}: {self.detail}"
