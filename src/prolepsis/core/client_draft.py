"""A draft that the client of a request made itself: what it expects of the answer at one place."""

from collections.abc import Sequence
from dataclasses import dataclass

from prolepsis.core.errors import InvalidParameter

MAX_CLIENT_DRAFT_TOKENS = 64
BROUGHT_BY_CLIENTS = frozenset({"client", "prediction"})
"""Proposers whose drafts come with requests. How good these are is up to each client, so they are judged by tenant."""


@dataclass(frozen=True, slots=True)
class ClientDraft:
    """Tokens that a client expects from one output position on."""

    position: int  # output position of the first token, from 0
    token_ids: tuple[int, ...]

    def validate(self, vocab_size: int) -> None:
        """Raise `InvalidParameter` for a draft that cannot be part of an answer."""
        if not 1 <= len(self.token_ids) <= MAX_CLIENT_DRAFT_TOKENS:
            message = f"token_ids has {len(self.token_ids)} tokens; allowed: 1 to {MAX_CLIENT_DRAFT_TOKENS}"
            raise InvalidParameter(message, param="token_ids")
        wrong = next((token for token in self.token_ids if not 0 <= token < vocab_size), None)
        if wrong is not None:
            message = f"token_ids holds token {str(wrong)[:24]}; allowed: 0 to {vocab_size - 1}"
            raise InvalidParameter(message, param="token_ids")

    def next_tokens(self, tokens: Sequence[int], num_prompt_tokens: int) -> tuple[int, ...]:
        """Return what the draft has after `tokens`, prompt and output so far.

        Nothing if the output has not come to the draft, has left it or has passed it.
        """
        start = num_prompt_tokens + self.position
        num_known = len(tokens) - start
        if not 0 <= num_known < len(self.token_ids) or self.token_ids[:num_known] != tuple(tokens[start:]):
            return ()
        return self.token_ids[num_known:]
