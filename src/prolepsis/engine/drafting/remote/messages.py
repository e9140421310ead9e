"""The messages between an engine and a propose server; this file is the protocol.

   engine                         propose server
   handshake: digest of the  <->  handshake: `ProposeLimits`    (the facts in `prolepsis.core.handshake`)
   vocabulary
   Open, Extend, Forget      -->                      no answer
   Ask (a round)             -->
                             <--  Drafts               of this round; earlier ones without an answer are given up

Tokens travel as ids, never as text.
"""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from prolepsis.core.codec import Codec
from prolepsis.core.tagged import Tagged
from prolepsis.engine.drafting.draft import Draft

PROTOCOL = "propose 2"
SCOPE_BYTES = 16
MOST_NODES = 128
SILENT_S = 5.0  # without an answer for so long an engine gives up its server, and a round in a queue is late
MOST_FROM_ENGINE, MOST_FROM_SERVER = 8 << 20, 1 << 20  # bytes of a message

Count = Annotated[int, Meta(ge=0)]
TokenId = Annotated[int, Meta(ge=0, lt=1 << 32)]


class ProposeLimits(Tagged, frozen=True):
    most_sequences: Count = 1024  # open at once, of one engine
    most_tokens: Count = 1 << 21  # most tokens of all sequences together
    most_draft_tokens: Annotated[int, Meta(ge=1)] = 32  # most tokens of one draft


class Open(Tagged, frozen=True):
    """A sequence under a number that is used once; its tokens follow."""

    number: Count
    scope: Annotated[bytes, Meta(min_length=SCOPE_BYTES, max_length=SCOPE_BYTES)]
    """Stands for its cache salt, which it hides: what is learned under one scope is never drafted under another."""
    num_prompt_tokens: Count
    temperature: float
    top_p: float
    top_k: int
    noise_key: Count


class Extend(Tagged, frozen=True):
    number: Count
    tokens: tuple[TokenId, ...]


class Forget(Tagged, frozen=True):
    """The sequence has ended."""

    number: Count


class DraftCall(Tagged, frozen=True):
    """Drafts are wanted for open sequences as they are now."""

    round: Count
    wishes: tuple[tuple[Count, Count], ...]  # number of a sequence, most nodes of its draft


@dataclass(frozen=True, slots=True)
class SentDraft:
    """The draft of one sequence, behind its first `prefix` tokens."""

    number: Count
    prefix: Count
    draft: Draft


class Drafts(Tagged, frozen=True):
    """The answer to a round and to all before it; sequences without a draft are left out."""

    round: Count
    drafts: tuple[SentDraft, ...]


FromEngine = Open | Extend | Forget | DraftCall
FROM_ENGINE = Codec[FromEngine](FromEngine)
FROM_SERVER = Codec[Drafts](Drafts)
TERMS = Codec[ProposeLimits](ProposeLimits)
