"""A generation request as it crosses from the HTTP room into the engine room: frozen, plain values only."""

from dataclasses import dataclass, field

from prolepsis.core.grammar import GrammarSpec
from prolepsis.core.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class SpeculationChoice:
    """What caller and policy allow of speculation; the plan and the measured value decide what takes effect."""

    enabled: bool = True
    forced: bool = False
    """Verify every draft there is, whether or not the cost curve says that it pays."""
    shadow: bool = False
    """Decode plainly; make drafts only to compare them with what is emitted."""
    num_speculative_tokens: int | None = None
    """Ceiling on drafted tokens a step; None leaves it to the engine."""
    proposers: tuple[str, ...] | None = None
    """Names of the proposers allowed; None allows every proposer of the plan."""
    off_by_policy: bool = False
    """Where it is not enabled: the policy says so, not the caller."""
    rollout_run: str = ""
    """The run of a rollout that it drafts under; what is rolled back stops by this name (`StopRun`)."""
    off_by_flag: bool = False
    """Where it is not enabled: a feature flag says so, whatever caller and policy say."""


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One prompt and how to continue it, `n` times."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    n: int = 1
    """Samples of the same prompt; sample i is keyed by (seed, i) and they share the prompt's pages."""
    priority: int = 0
    """Lower runs first; equal priorities run in order of arrival."""
    deadline_s: float | None = None
    """Seconds after arrival at which the request is failed with `DeadlineExceeded`."""
    scope: str = ""
    """Tenant scope: nothing drafted or cached for one scope is visible to another."""
    slice: str = ""
    """Requests of one slice are alike to whoever watches proposers (`control.slices`)."""
    prediction_token_ids: tuple[int, ...] = ()
    """The caller's predicted output (OpenAI `prediction`), tokenised."""
    grammar: GrammarSpec | None = None
    """Every emitted token keeps the answer inside this language; None leaves it free."""
    speculation: SpeculationChoice = field(default_factory=SpeculationChoice)
    tells_drafts: bool = False
    """Its `Tokens` say what was proposed."""
    emitted: tuple[tuple[int, ...], ...] = ()
    """What was emitted for the same request before, sample by sample; it is then a replay, held against that.

    A replay is decoded plainly. Nothing that others computed is reused for it, and nobody learns from it.
    """

    @property
    def is_replay(self) -> bool:
        return bool(self.emitted)
