"""One answer as its client shows it: the verified text, and behind it what its proposer expects.

Provisional tokens stand until the server's tokens say otherwise: they are extended, and never changed in between.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from prolepsis.core.client_draft import ClientDraft
from prolepsis.engine.drafting.proposer import Proposer, SequenceFields
from prolepsis.remote.verify_events import Emitted, Started

_INCOMPLETE = "\ufffd"
"""In the text of a token that is part of a character."""
_PATIENCE = 3
"""Drafts in a row of which no token may be right; after them the client drafts at every second token, then at every
fourth, and so on, as each wrong draft costs the server a verification."""
_LONGEST_PAUSE = 32
"""Most tokens between two drafts."""


@dataclass(slots=True)
class ProvisionalCounts:
    """Counts of provisional tokens by their fate."""

    num_confirmed: int = 0
    num_withdrawn: int = 0  # replaced, or dropped with one that was
    num_corrections: int = 0


class ProvisionalAnswer:
    """The answer to one request; the proposer is its own while it runs."""

    def __init__(self, started: Started, proposer: Proposer, *, num_ahead: int) -> None:
        """`num_ahead`: most provisional tokens; 0: nothing is drafted."""
        self.text = ""
        """Verified."""
        self.provisional: tuple[int, ...] = ()
        self.counts = ProvisionalCounts()
        self._sequence = SequenceFields(started.id, list(started.prompt_token_ids), len(started.prompt_token_ids))
        self._proposer = proposer
        self._num_ahead = min(num_ahead, started.drafts.max_tokens)
        self._texts = dict[int, str]()
        self._server_has = 0
        """Output position up to which the server has the provisional tokens."""
        self._num_wrong = 0
        """Drafts in a row of which no token was right."""
        self._next_draft = 0
        """Output position from which to draft."""
        self._learn_texts(started.prompt_token_ids, started.prompt_token_strs)
        proposer.commit(self._sequence, len(started.prompt_token_ids))
        self._draft()

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Verified."""
        return tuple(self._sequence.tokens[self._sequence.num_prompt_tokens :])

    @property
    def num_tokens(self) -> int:
        """Verified output tokens."""
        return len(self._sequence.tokens) - self._sequence.num_prompt_tokens

    @property
    def provisional_text(self) -> str:
        """The text of the provisional tokens, up to the first whose text is unknown or incomplete."""
        texts = (self._texts.get(token, _INCOMPLETE) for token in self.provisional)
        return "".join(takewhile(lambda text: _INCOMPLETE not in text, texts))

    def take(self, event: Emitted) -> bool:
        """Process verified tokens and draft on; return whether they correct provisional ones."""
        pairs = zip(event.token_ids, self.provisional, strict=False)
        num_right = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        is_corrected = num_right < min(len(event.token_ids), len(self.provisional))
        self.counts.num_confirmed += num_right
        self.provisional = self.provisional[num_right:]
        if is_corrected:
            self._withdraw()
            self.counts.num_corrections += 1
        self.text += event.text
        self._learn_texts(event.token_ids, event.token_strs)
        self._sequence.tokens += event.token_ids
        if num_right:
            self._num_wrong = self._next_draft = 0
        elif is_corrected:
            self._num_wrong += 1
            pause = min(_LONGEST_PAUSE, 1 << max(0, self._num_wrong - _PATIENCE))
            self._next_draft = self.num_tokens + pause - 1
        self._proposer.commit(self._sequence, len(event.token_ids))
        self._draft()
        return is_corrected

    def finish(self) -> None:
        """The answer is complete, or has failed: nothing is provisional any more."""
        self._withdraw()
        self._proposer.forget(self._sequence)

    def due_draft(self) -> ClientDraft | None:
        """Return the draft to send, None if the server has enough of it; it counts as sent."""
        end = self.num_tokens + len(self.provisional)
        has_enough = self._server_has - self.num_tokens > self._num_ahead // 2
        if not self.provisional or has_enough or end <= self._server_has:
            return None
        self._server_has = end
        return ClientDraft(self.num_tokens, self.provisional)

    def not_sent(self) -> None:
        """The last draft did not reach the server."""
        self._server_has = 0

    def _draft(self) -> None:
        """Extend the provisional tokens if few are left."""
        has_enough = not self._num_ahead or len(self.provisional) > self._num_ahead // 2
        if has_enough or self.num_tokens < self._next_draft or not self._proposer.serves(self._sequence):
            return
        (draft,) = self._proposer.propose([self._sequence], [self._num_ahead])
        if draft is None:
            return
        if draft.principal[: len(self.provisional)] == self.provisional:
            self.provisional = draft.principal

    def _withdraw(self) -> None:
        self.counts.num_withdrawn += len(self.provisional)
        self.provisional = ()
        self._server_has = 0

    def _learn_texts(self, token_ids: Sequence[int], texts: Iterable[str]) -> None:
        self._texts.update(zip(token_ids, texts, strict=False))
