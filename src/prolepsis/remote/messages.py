"""Messages between a front end and the host of an engine, in the order in which they are sent.

front end                       host
Start                       -->                                (to a host that the front end has started itself)
                            <--   StartPhase                   (several times a second, until one of the next)
                            <--   EngineStarted | StartFailed
                            <--   Status                       (first, and then several times a second)
Generate                    -->
                            <--   Streamed (each event) | Rejected
Leave                       -->                                (the reader of a stream has left)
Abort, OfferDraft,
ApplyPlan, StopRun,
SetCorpora, InjectFault,
LearnedAcceptance           -->                                (`core.messages.Control`)
ListHeads, LoadHead         -->
                            <--   Heads, HeadLoaded | Rejected
WaitingLoad                 -->                                (several times a second)
                            <--   StepDone, RequestDone, ...   (`core.figures.Figure`: each to one front end)
Close                       -->                                (end the requests, and then the connection)
"""

from dataclasses import dataclass

from prolepsis import __version__
from prolepsis.core.config import EngineConfig, HeadProposerName
from prolepsis.core.engine_client import Demand, EngineClient, EngineHealth, EngineInfo, HeadSwapped, InstalledHead
from prolepsis.core.errors import ProlepsisError
from prolepsis.core.events import Event
from prolepsis.core.figures import Figure
from prolepsis.core.messages import Control
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.stats import ProposerMemory, TrafficClassCounts
from prolepsis.core.tagged import Tagged
from prolepsis.core.telemetry.logs import Level
from prolepsis.engine.kv.memory import MemoryUse
from prolepsis.engine.text.model_tokenizer import TokenizerState

PROTOCOL = f"prolepsis engine {__version__}"  # front ends and hosts of one version read each other's messages


@dataclass(frozen=True, slots=True)
class LogSettings:
    """How a host writes log lines: to the standard error that it shares with the front end."""

    level: Level = "info"
    as_json: bool = False


class Start(Tagged, frozen=True):
    config: EngineConfig
    reserved: tuple[MemoryUse, ...]  # memory of the machine that the front end uses
    logs: LogSettings


class Status(Tagged, frozen=True):
    """State of the engine; a host that sends none hangs."""

    health: EngineHealth
    info: EngineInfo
    counts: tuple[TrafficClassCounts, ...]
    memory: tuple[ProposerMemory, ...]

    @classmethod
    def of(cls, client: EngineClient) -> "Status":
        return cls(client.health(), client.info, tuple(client.proposer_counts()), tuple(client.proposer_memory()))


class StartPhase(Tagged, frozen=True):
    """What the start is doing, as `core.phases.Phase` has it."""

    what: str
    total: int | None
    in_bytes: bool
    done: int


class EngineStarted(Tagged, frozen=True):
    status: Status
    tokenizer: TokenizerState
    compile_seconds: tuple[float, ...]  # compilation time of each file of native code that was compiled


class StartFailed(Tagged, frozen=True):
    """There is no engine; the process ends."""

    error: ProlepsisError


class Generate(Tagged, frozen=True):
    """Send the events of a request under a number that is used once."""

    number: int
    request: GenerateRequest


class Leave(Tagged, frozen=True):
    number: int


class ListHeads(Tagged, frozen=True):
    number: int


class LoadHead(Tagged, frozen=True):
    number: int
    name: str
    proposer: HeadProposerName


class WaitingLoad(Tagged, frozen=True):
    demand: Demand


class Close(Tagged, frozen=True):
    """End the requests of this front end, and the connection."""


class Streamed(Tagged, frozen=True):
    number: int
    event: Event


class Rejected(Tagged, frozen=True):
    """A question has no answer; a request, no first event."""

    number: int
    error: ProlepsisError


class Heads(Tagged, frozen=True):
    number: int
    heads: tuple[InstalledHead, ...]


class HeadLoaded(Tagged, frozen=True):
    number: int
    result: HeadSwapped


ToHost = Start | Generate | Leave | Control | ListHeads | LoadHead | WaitingLoad | Close
ToFrontEnd = StartPhase | EngineStarted | StartFailed | Status | Streamed | Rejected | Heads | HeadLoaded | Figure
