"""One conversation as training sees it: what was asked, what the target said, and its hidden states."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Document:
    """Tokens of a prompt and its response, as far as the target computed them (all but the last one emitted)."""

    number: int
    """Of the prompt in its run: the split and resumption go by it."""
    kind: str
    greedy: bool
    tokens: Tensor  # [n] int32
    response_start: int
    features: Tensor  # [n, taps * hidden] bfloat16
