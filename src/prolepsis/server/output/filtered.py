"""One sample behind the output policies: the text and tokens that its client gets, and the drafts they deliver."""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from prolepsis.core.reasons import LossReason
from prolepsis.server.output.pipeline import FilterPipeline, SourceSpan, text_of
from prolepsis.server.text.deltas import Delta, OutputToken

Range = tuple[int, int]  # characters of the sample's own text, the second excluded


@dataclass(frozen=True, slots=True)
class _PlacedToken:
    token: OutputToken
    start: int
    end: int


class TokenAlignment:
    """Tokens go in as they are emitted and come out once their text is decided."""

    def __init__(self) -> None:
        self._textless: list[OutputToken] = []
        self._open: deque[_PlacedToken] = deque()
        self._end = 0

    def add(self, tokens: Sequence[OutputToken]) -> None:
        """Take emitted tokens; those without text yet belong to the text that comes next."""
        for token in tokens:
            self._textless.append(token)
            if token.end > self._end:
                self._place(token.end)

    def passes(self, tokens: Sequence[OutputToken], up_to: int) -> bool:
        """Return whether `tokens` and all before them are shown now; then they need not be added."""
        if self._open or self._textless or not tokens or not self._end < tokens[-1].end <= up_to:
            return False
        self._end = tokens[-1].end
        return True

    def shown(self, up_to: int, changed: Sequence[Range] = ()) -> tuple[list[OutputToken], list[OutputToken]]:
        """Return the tokens whose text is decided, all of it before `up_to`: those shown, and those `changed`."""
        shown: list[OutputToken] = []
        lost: list[OutputToken] = []
        while self._open and self._open[0].end <= up_to:
            placed = self._open.popleft()
            (lost if _touched(placed, changed) else shown).append(placed.token)
        return shown, lost

    def rest(self, up_to: int, changed: Sequence[Range] = ()) -> tuple[list[OutputToken], list[OutputToken]]:
        """Return what is left at the end of a sample shown up to `up_to`: tokens shown in part, and those not shown."""
        self._place(self._end)
        shown, lost = self.shown(up_to, changed)
        while self._open:
            placed = self._open.popleft()
            in_part = placed.start < up_to and not _touched(placed, changed)
            (shown if in_part else lost).append(placed.token)
        return shown, lost

    @property
    def start(self) -> int:
        """Where the first token begins that is not decided."""
        return self._open[0].start if self._open else self._end

    def _place(self, end: int) -> None:
        self._open.extend(_PlacedToken(token, self._end, end) for token in self._textless)
        self._textless, self._end = [], end


def _touched(placed: _PlacedToken, changed: Sequence[Range]) -> bool:
    return any(placed.start < end and start < placed.end for start, end in changed)


LostDrafts = Counter[tuple[str, LossReason]]
"""Tokens by the proposer that drafted them and why they did not reach the client."""


class FilteredSample:
    """Takes a sample's deltas in their order. Ids and log-probabilities of a token go out with its whole text.

    Tokens whose text a policy changed or cut off are not shown in any form.
    """

    def __init__(self, pipeline: FilterPipeline | None, lost: LostDrafts) -> None:
        self.stopped = False  # a policy ended the answer
        self.num_tokens = 0  # tokens read so far
        self._pipeline = pipeline
        self._lost = lost
        self._alignment = TokenAlignment()
        self._fed = 0
        self._up_to = 0
        self._changed: list[Range] = []
        self._ready: list[OutputToken] = []
        self._delivered: list[str] = []
        self._unsent = 0
        self._first = True

    def count(self, delta: Delta) -> Delta:
        """Return a delta that no policy reads, with the names of those whose drafted tokens it delivers."""
        self._up_to += len(delta.text)
        self.num_tokens += delta.num_tokens
        if delta.finish_reason is None and self._alignment.passes(delta.tokens, self._up_to):
            return delta
        self._alignment.add(delta.tokens)
        shown, _ = self._alignment.shown(self._up_to)
        if delta.finish_reason is not None:
            more, lost = self._alignment.rest(self._up_to)
            shown += more
            self._lose(lost, "stop_string")
        return replace(delta, delivered=tuple(token.by for token in shown if token.by))

    async def take(self, delta: Delta) -> Delta | None:
        if self._pipeline is None:
            return self.count(delta)
        ended = delta.finish_reason is not None
        outcome = await self._pipeline.take(self._pieces(delta), ended=ended)
        self.stopped = outcome.stopped_by is not None
        spans = [span for part in outcome.tokens for span in part]
        num_tokens = min(len(outcome.tokens), len(delta.tokens))
        self.num_tokens += num_tokens
        self._unsent += num_tokens
        self._follow(delta.tokens[:num_tokens], spans, ended=ended or self.stopped)
        text = text_of(spans)
        if not text and not ended and not self.stopped:
            return None
        return self._shown(delta, text, outcome.stopped_by)

    def _pieces(self, delta: Delta) -> list[list[SourceSpan]]:
        """Return the delta's text token by token; what comes without a token, at the end, stands as one more."""
        texts = [token.text for token in delta.tokens]
        rest = delta.text[sum(map(len, texts)) :]
        if rest or not texts:
            texts.append(rest)
        spans: list[list[SourceSpan]] = []
        for text in texts:
            spans.append([SourceSpan(text, self._fed, self._fed + len(text))] if text else [])
            self._fed += len(text)
        return spans

    def _follow(self, tokens: Sequence[OutputToken], spans: Sequence[SourceSpan], *, ended: bool) -> None:
        self._up_to = max([self._up_to, *(span.end for span in spans)])
        self._changed += [(span.start, span.end) for span in spans if not span.verbatim]
        self._alignment.add(tokens)
        shown, lost = self._alignment.shown(self._up_to, self._changed)
        self._lose(lost, "policy")
        if ended:
            more, lost = self._alignment.rest(self._up_to, self._changed)
            shown += more
            self._lose(lost, "policy" if self.stopped else "stop_string")
        self._changed = [(start, end) for start, end in self._changed if end > self._alignment.start]
        self._ready += shown
        self._delivered += [token.by for token in shown if token.by]

    def _shown(self, delta: Delta, text: str, stopped_by: str | None) -> Delta:
        ready, self._ready = self._ready, []
        delivered, self._delivered = tuple(self._delivered), []
        unsent, self._unsent = self._unsent, 0
        first, self._first = self._first, False
        logprobs = tuple(token.shown for token in ready if token.shown) if delta.logprobs is not None else None
        return replace(
            delta,
            text=text,
            first=first,
            logprobs=logprobs,
            finish_reason="content_filter" if stopped_by is not None else delta.finish_reason,
            stop_reason=stopped_by if stopped_by is not None else delta.stop_reason,
            token_ids=tuple(token.token_id for token in ready),
            tokens=(),
            position=self.num_tokens - unsent,
            num_tokens=unsent,
            delivered=delivered,
        )

    def _lose(self, tokens: Iterable[OutputToken], reason: LossReason) -> None:
        for token in tokens:
            if token.by:
                self._lost[token.by, reason] += 1
