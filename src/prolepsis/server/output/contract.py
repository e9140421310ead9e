"""One sample at the contract boundary: what of it the client gets, and which drafted tokens that delivers."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from prolepsis.core.stats import LossReason
from prolepsis.server.choices import Delta, SaidToken
from prolepsis.server.output.chain import Chain, Outcome
from prolepsis.server.output.coverage import Coverage, Range
from prolepsis.server.output.pieces import Piece, text_of

Lost = Counter[tuple[str, LossReason]]
"""Tokens by the proposer that drafted them and why they did not reach the client."""


class Contract:
    """Takes a sample's deltas in their order. Ids and log-probabilities of a token go out with its whole text.

    Tokens whose text a policy changed or cut off are not shown in any form.
    """

    def __init__(self, chain: Chain | None, lost: Lost) -> None:
        self.stopped = False
        """A policy ended the answer."""
        self.num_tokens = 0
        """Tokens read so far."""
        self._chain = chain
        self._lost = lost
        self._coverage = Coverage()
        self._fed = 0
        self._up_to = 0
        self._changed: list[Range] = []
        self._ready: list[SaidToken] = []
        self._delivered: list[str] = []
        self._unsaid = 0
        self._first = True

    def count(self, delta: Delta) -> Delta:
        """Return a delta that no policy reads, with the names of those whose drafted tokens it delivers."""
        self._up_to += len(delta.text)
        self.num_tokens += delta.num_tokens
        if delta.finish_reason is None and self._coverage.passes(delta.said, self._up_to):
            return delta
        self._coverage.add(delta.said)
        shown, _ = self._coverage.shown(self._up_to)
        if delta.finish_reason is not None:
            more, lost = self._coverage.rest(self._up_to)
            shown += more
            self._lose(lost, "stop_string")
        return replace(delta, delivered=tuple(token.by for token in shown if token.by))

    async def take(self, delta: Delta) -> Delta | None:
        """Return what the policies let through by now, None where that is nothing."""
        if self._chain is None:
            return self.count(delta)
        ended = delta.finish_reason is not None
        outcome = await self._chain.take(self._pieces(delta), ended=ended)
        self.stopped = outcome.stopped_by is not None
        num_tokens = min(outcome.num_tokens, len(delta.said))
        self.num_tokens += num_tokens
        self._unsaid += num_tokens
        self._follow(delta.said[:num_tokens], outcome, ended=ended or self.stopped)
        text = text_of(outcome.pieces)
        if not text and not ended and not self.stopped:
            return None
        return self._shown(delta, text, outcome.stopped_by)

    def _pieces(self, delta: Delta) -> list[list[Piece]]:
        """Return the delta's text token by token; what comes without a token, at the end, stands as one more."""
        texts = [token.text for token in delta.said]
        rest = delta.text[sum(map(len, texts)) :]
        if rest or not texts:
            texts.append(rest)
        pieces: list[list[Piece]] = []
        for text in texts:
            pieces.append([Piece(text, self._fed, self._fed + len(text))] if text else [])
            self._fed += len(text)
        return pieces

    def _follow(self, said: Sequence[SaidToken], outcome: Outcome, *, ended: bool) -> None:
        """Find the tokens that are decided now."""
        self._up_to = max([self._up_to, *(piece.end for piece in outcome.pieces)])
        self._changed += [(piece.start, piece.end) for piece in outcome.pieces if not piece.verbatim]
        self._coverage.add(said)
        shown, lost = self._coverage.shown(self._up_to, self._changed)
        self._lose(lost, "policy")
        if ended:
            more, lost = self._coverage.rest(self._up_to, self._changed)
            shown += more
            self._lose(lost, "policy" if self.stopped else "stop_string")
        self._changed = [(start, end) for start, end in self._changed if end > self._coverage.start]
        self._ready += shown
        self._delivered += [token.by for token in shown if token.by]

    def _shown(self, delta: Delta, text: str, stopped_by: str | None) -> Delta:
        ready, self._ready = self._ready, []
        delivered, self._delivered = tuple(self._delivered), []
        unsaid, self._unsaid = self._unsaid, 0
        first, self._first = self._first, False
        logprobs = tuple(token.logprobs for token in ready if token.logprobs) if delta.logprobs is not None else None
        return replace(
            delta,
            text=text,
            first=first,
            logprobs=logprobs,
            finish_reason="content_filter" if stopped_by is not None else delta.finish_reason,
            stop_reason=stopped_by if stopped_by is not None else delta.stop_reason,
            token_ids=tuple(token.token_id for token in ready),
            said=(),
            num_tokens=unsaid,
            delivered=delivered,
        )

    def _lose(self, tokens: Iterable[SaidToken], reason: LossReason) -> None:
        for token in tokens:
            if token.by:
                self._lost[token.by, reason] += 1
