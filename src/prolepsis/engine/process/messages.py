"""Messages between a server and its engine's process: frozen values, pickled, in the order they were sent.

Both processes are one program at one version, and the socket between them has no name: nothing else can write to it.

   server                          engine's process
   Start                     -->
                             <--   Started | StartFailed
   Generate, Leave           -->
                             <--   Streamed (events of a stream), Refused
   Control                   -->                                        (aborts, drafts, plans, stopped runs: no answer)
   Ask                       -->
                             <--   Answered
                             <--   Observed, Status
   Close, or the end of the socket
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from prolepsis.core.config import EngineConfig
from prolepsis.core.events import Event
from prolepsis.core.figures import Figure
from prolepsis.core.messages import Control
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.stats import ProposerMemory, TrafficClassCounts
from prolepsis.engine.client import EngineClient, EngineHealth, EngineInfo
from prolepsis.engine.containment import Containment
from prolepsis.engine.observer import EngineObserver
from prolepsis.kv.memory import MemoryUse
from prolepsis.models.files.tokenizer import Tokenizer
from prolepsis.telemetry.logs import Level


@dataclass(frozen=True, slots=True)
class LogSettings:
    """How the engine's process writes its log lines: to the standard error that it shares with the server."""

    level: Level = "info"
    as_json: bool = False


@dataclass(frozen=True, slots=True)
class Start:
    """Load the model and run an engine."""

    config: EngineConfig
    reserved: tuple[MemoryUse, ...]
    """Memory of the machine that the server uses."""
    logs: LogSettings


@dataclass(frozen=True, slots=True)
class Started:
    """The engine is there."""

    info: EngineInfo
    tokenizer: Tokenizer
    compile_seconds: tuple[float, ...]
    """Compilation time of each file of native code that was compiled."""


@dataclass(frozen=True, slots=True)
class StartFailed:
    """There is no engine; the process ends."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Generate:
    """Send the events of a request under a number that is used once."""

    stream: int
    request: GenerateRequest


@dataclass(frozen=True, slots=True)
class Leave:
    """The reader of a stream has left."""

    stream: int


@dataclass(frozen=True, slots=True)
class Streamed:
    stream: int
    event: Event


@dataclass(frozen=True, slots=True)
class Refused:
    """The request of a stream was refused before its first event."""

    stream: int
    error: Exception


@dataclass(frozen=True, slots=True)
class Ask:
    """Call a coroutine of the engine's client by name."""

    number: int
    method: str
    arguments: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Answered:
    number: int
    value: object
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Observed:
    """A figure for the engine's observer."""

    figure: Figure


def tell_all(calls: Iterable[Observed], observer: EngineObserver | None, contained: Containment) -> None:
    """Make calls of an engine's observer in order, if there is one; what a call raises costs its figures."""
    if observer is not None:
        for one in calls:
            with contained.of("figures"):
                observer.observe(one.figure)


@dataclass(frozen=True, slots=True)
class Status:
    """State of the engine, sent several times per second; a process that sends none hangs."""

    health: EngineHealth
    info: EngineInfo
    counts: Sequence[TrafficClassCounts]
    memory: Sequence[ProposerMemory]

    @classmethod
    def of(cls, client: EngineClient) -> "Status":
        return cls(client.health(), client.info, tuple(client.proposer_counts()), tuple(client.proposer_memory()))


@dataclass(frozen=True, slots=True)
class Close:
    """End the requests and the process."""


Sent = Start | Generate | Leave | Control | Ask | Close
Received = Started | StartFailed | Streamed | Refused | Answered | Observed | Status
"""As the server sees it, and so is `Sent`."""
