"""Events of a request. Each accepted request gets exactly one terminal event, its last."""

from dataclasses import dataclass
from typing import Literal

from prolepsis.core.errors import ProlepsisError
from prolepsis.core.stats import RequestStats
from prolepsis.core.tagged import Tagged

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The target's log-probabilities at one token, before temperature and truncation."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # (token id, log-probability), likeliest first
    rank: int = 0  # place of the token among all by its logit, from 1; 0: not known


@dataclass(frozen=True, slots=True)
class Proposed:
    """The draft that a step verified; node i follows node `parents[i]`, -1 being the last committed token."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    proposer: str
    sources: tuple[str, ...] = ()  # proposer of each node of a merged draft; empty: all are of `proposer`


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token at which a replay differs from the recorded tokens, and the kind of difference."""

    position: int  # output position, from 0
    emitted: int | None  # the token emitted before; None: the sample had ended there
    replayed: int | None  # the token of the replay; None: it ended there
    kind: Literal["near_tie", "structural"]  # near_tie: rounding explains it (`engine.drafting.divergence`)
    margin: float | None = None
    """Distance of the two tokens' scores, in logits; None if one of the runs had ended, or its token is banned."""
    tolerance: float | None = None  # largest margin that rounding explains, in logits


class Tokens(Tagged, frozen=True):
    """Tokens of sample `index` committed by one step; the last event of a sample carries its finish reason."""

    request_id: str
    index: int
    token_ids: tuple[int, ...]
    position: int  # output position of the first of the tokens, from 0
    logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    """The stop string or stop token id that ended the sample; None for end of sequence and length."""
    proposed: Proposed | None = None
    """The draft that was verified, if there was one and the request reports drafts."""
    difference: Difference | None = None
    """Where the request is a replay that leaves its recording here; the sample ends with it."""
    accepted_by: tuple[str, ...] = ()  # the first of the tokens were drafted and accepted: by whom each counts
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    """Of the prompt's tokens from `scored_from` on, where they are asked for: with the first event of a request."""


class Finished(Tagged, frozen=True):
    """Terminal: every sample ended by itself."""

    request_id: str
    stats: RequestStats


class Aborted(Tagged, frozen=True):
    """Terminal: ended from outside (client disconnect, shutdown)."""

    request_id: str
    stats: RequestStats
    reason: str = "client"


class Failed(Tagged, frozen=True):
    """Terminal: the engine could not serve it."""

    request_id: str
    error: ProlepsisError
    stats: RequestStats


Terminal = Finished | Aborted | Failed
Event = Tokens | Terminal
