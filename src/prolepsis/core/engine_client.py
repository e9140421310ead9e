"""The interface of an engine for its clients."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from prolepsis import __version__
from prolepsis.core.config import DRAFT_HEAD, HEAD_PROPOSERS, MERGED, HeadProposerName
from prolepsis.core.events import Event
from prolepsis.core.exact_group import FINGERPRINT, ExactGroup
from prolepsis.core.json_value import computed
from prolepsis.core.messages import Control
from prolepsis.core.model_files import ModelFiles
from prolepsis.core.requests import GenerateRequest, SamplingDefaults
from prolepsis.core.stats import ProposerMemory, TrafficClassCounts


@dataclass(frozen=True, slots=True)
class EngineInfo:
    model: str
    forward: str
    vocab_size: int
    max_model_len: int
    fingerprint: str  # hash of tokenizer, weights and forward; `system_fingerprint` of the OpenAI API
    exactness: Literal["strict", "normal"]
    exactness_reason: str
    proposers: tuple[str, ...]
    draft_head: str | None = None  # NAME@VERSION of the draft head in use
    candidate_head: str | None = None  # the second draft head, which drafts only if it is named
    learnt_head: str | None = None  # the third, likewise: it learnt from traffic
    num_experts: int = 0  # experts in each layer of a mixture-of-experts target, 0 for others
    default_sampling: SamplingDefaults = field(default_factory=SamplingDefaults)
    """Values for sampling parameters that requests leave out."""
    weights: str = ""  # as in `ExactGroup`, and so are the next two
    tokenizer: str = ""
    machine: str = ""
    draft_head_reason: str = ""
    """How the draft head was found, or why there is none; empty: an engine without heads of its own."""
    paying_loads: str = ""
    """At which loads drafts can pay here, by the measured cost of passes, in a sentence; empty: not measured."""
    files: ModelFiles = field(default_factory=ModelFiles)

    @property
    def exact_group(self) -> ExactGroup:
        """The machines that would produce the same tokens."""
        return ExactGroup(
            weights=self.weights,
            tokenizer=self.tokenizer,
            forward=self.forward,
            exactness=self.exactness,
            machine=self.machine,
        )

    @property
    def heads(self) -> dict[str, str]:
        """NAME@VERSION of the heads in use, by proposer."""
        labels = zip(HEAD_PROPOSERS, (self.draft_head, self.candidate_head, self.learnt_head), strict=True)
        return {proposer: label for proposer, label in labels if label is not None}

    def weights_of(self, proposer: str) -> str:
        """Return what a proposer drafts with, to which its figures belong: the target, and its head or all of them."""
        own = [head for name, head in self.heads.items() if proposer in (name, MERGED)]
        return " ".join([*own, self.fingerprint])

    @property
    def versions(self) -> dict[str, str]:
        """Versions that produced the tokens, for the audit log."""
        named = {"prolepsis": __version__, "model": self.model, FINGERPRINT: self.fingerprint}
        return named | self.exact_group.plain()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMember:
    name: str
    exact_group: str  # as `ExactGroup.digest`
    ready: bool
    detail: str
    num_running: int
    num_waiting: int
    kv_usage: float


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """How much of a request's prompt has been read."""

    request_id: str
    num_read: int  # of its tokens, cached ones included
    num_cached: int
    num_tokens: int

    def __str__(self) -> str:
        return f"reading the prompt, {self.num_read:,} of {self.num_tokens:,} tokens"


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """Liveness and readiness as the engine sees itself."""

    alive: bool
    ready: bool
    detail: str
    """Reason why it is not alive or not ready, or the part that it serves without; empty if it is whole."""
    num_running: int = 0
    num_waiting: int = 0
    kv_usage: float = 0.0  # share of KV pages in use, 0 to 1
    max_running: int = 0  # most sequences that run at once; 0: not known
    is_leaving: bool = False  # it ends once its requests have ended, so it is asked for nothing more
    num_elsewhere: int = 0  # requests that other front ends have in it
    not_begun: tuple[str, ...] = ()
    """Ids of the requests of which no pass has computed anything yet. Upstream engines do not say."""
    reading: tuple[PromptProgress, ...] = ()
    """Of the requests whose prompts are not read whole. Upstream engines and vLLM do not say."""
    members: tuple[EngineMember, ...] = ()
    """The engines behind this one, where it stands for several in other processes."""


@dataclass(frozen=True, slots=True)
class Demand:
    queue_age_s: float
    """Age of the oldest request that waits in front of an engine, or in one for its first pass; not of batch work."""
    num_waiting: int  # requests in front of the engines


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledHead:
    name: str
    version: int
    aliases: tuple[str, ...]
    target: str  # name of the target it was trained for; empty if unknown
    misfit: str | None  # reason why it cannot draft for the engine's target
    size: int  # bytes of its weights
    chain_of_3: float | None  # tokens of a step with a chain of three drafted tokens, on held-out text
    auto: str = ""  # whether and why `draft_head: auto` takes it, or why not; empty for a misfit

    @computed
    def label(self) -> str:
        return f"{self.name}@{self.version}"

    @property
    def names(self) -> tuple[str, ...]:
        """Names by which it may be called."""
        return (self.name, self.label, *(f"{self.name}@{alias}" for alias in self.aliases))


@dataclass(frozen=True, slots=True)
class HeadSwapped:
    """The result of a swap of draft heads; NAME@VERSION each, None for no head."""

    previous: str | None
    current: str | None
    step: int  # steps that the engine ran before


class EngineClient(Protocol):
    """Asks one engine for tokens. Safe to use from one event loop; the engine runs elsewhere."""

    @property
    def info(self) -> EngineInfo: ...

    def generate(self, request: GenerateRequest) -> AsyncIterator[Event]:
        """Yield the request's events, the last one terminal; closing the iterator early aborts the request.

        Raises `UserError` before the first event if the request cannot be served, `EngineDead` if nothing can.
        """

    def send(self, control: Control) -> None:
        """Abort a request, offer a draft for one, apply a plan or stop a run, soon and without an answer."""

    async def heads(self) -> Sequence[InstalledHead]:
        """Return the draft heads that are installed, by name and version."""

    async def swap_head(self, name: str, proposer: HeadProposerName = DRAFT_HEAD) -> HeadSwapped:
        """Load a draft head ("none", "auto", NAME, NAME@VERSION, NAME@ALIAS or a folder), put it in between two steps.

        Requests in flight continue with the same tokens, and without the head. Raises `ModelError` if it cannot be
        used, `MemoryPlanError` if its caches do not fit, `InvalidParameter` if the engine takes none. The old one stays
        then.
        """

    def health(self) -> EngineHealth: ...

    def proposer_counts(self) -> Sequence[TrafficClassCounts]:
        """Return the counts of each proposer and traffic class since the engine started or the proposer was loaded."""

    def proposer_memory(self) -> Sequence[ProposerMemory]:
        """Return the memory that each proposer takes besides the target's weights and K/V."""

    async def close(self) -> None:
        """Stop the engine; requests in flight end with `Aborted`."""


def weights_of(client: EngineClient, proposer: str) -> str:
    """Return what a proposer drafts with now (`EngineInfo.weights_of`)."""
    return client.info.weights_of(proposer)
