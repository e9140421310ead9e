"""A sequence as proposers see it, with plain fields, and small builders around it."""

from dataclasses import dataclass, field

from prolepsis.core.requests import SamplingParams
from prolepsis.grammar.matcher import Matcher
from prolepsis.spec.draft import Draft

VOCAB = 100


@dataclass
class FakeSequence:
    tokens: list[int]
    num_prompt_tokens: int = 0
    key: str = "r0/0"
    scope: str = ""
    traffic_class: str = ""
    prediction: tuple[int, ...] = ()
    params: SamplingParams = field(default_factory=lambda: SamplingParams(temperature=0.0))
    noise_key: int = 0
    matcher: Matcher | None = None
    pages: list[int] = field(default_factory=list)


def accepted(draft: Draft, truth: list[int]) -> list[int]:
    """Return the nodes of `draft` that verification against `truth`, the target's tokens, would accept."""
    path: list[int] = []
    for token in truth:
        above = path[-1] if path else -1
        children = [i for i in range(len(draft.tokens)) if draft.parents[i] == above and draft.tokens[i] == token]
        if not children:
            break
        path.append(children[0])
    return path
