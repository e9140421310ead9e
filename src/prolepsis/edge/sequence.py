"""An answer as a proposer sees it where its client is."""

from dataclasses import dataclass, field

from prolepsis.core.requests import SamplingParams


@dataclass(slots=True)
class LocalSequence:
    """A `SequenceView` without what only an engine has."""

    key: str
    tokens: list[int]
    """Prompt and verified output."""
    num_prompt_tokens: int
    params: SamplingParams = field(default_factory=SamplingParams)
    noise_key: int = 0
    cache_salt: str = ""
    traffic_class: str = ""
    pages: tuple[int, ...] = ()
    prediction: tuple[int, ...] = ()
    client_draft: None = None
    matcher: None = None
