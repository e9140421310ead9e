"""Built-in output policy: what looks like a secret, or matches patterns of the operator's own, is not shown."""

import time
from collections import deque
from collections.abc import Mapping

import regex

from prolepsis.control.redaction.secrets import MARK, SHAPES
from prolepsis.core.errors import ConfigError
from prolepsis.server.output.policy import ALLOW, AnswerFacts, Rewrite, TextDecision, hold_back, rewrite, stop

_CONTEXT = 64  # characters already shown that look-behinds and word boundaries may see
_TIMEOUT_S = 0.02  # processor time that a search may take


class Patterns:
    """Replaces every match, or ends the answer before it; what may still become a match waits.

    A match that has not ended after `max_match` characters ends the answer, because its end is unknown.
    """

    inline = True

    def __init__(
        self, *, patterns: Mapping[str, str] | None = None, stops: bool = False, max_match: int = 4000
    ) -> None:
        """`patterns`: by what is shown in their place; none: the shapes of keys and tokens that the audit log knows.

        `stops`: end the answer instead. Raises `ConfigError` for an invalid pattern (module `regex`).
        """
        given = patterns or {MARK: "|".join(SHAPES)}
        self.patterns = [(mark, _compiled(mark, pattern)) for mark, pattern in given.items()]
        self.stops = stops
        self.max_match = max_match

    def begin(self, answer: AnswerFacts) -> "_Reading":
        return _Reading(self)


class _Reading:
    def __init__(self, policy: Patterns) -> None:
        self._policy = policy
        self._context = ""

    def look(self, pending: str, *, ended: bool) -> TextDecision:
        """Say what becomes of `pending`; raises `TimeoutError` where a pattern takes too long."""
        text, begin = self._context + pending, len(self._context)
        changes: list[Rewrite] = []
        position = begin
        while (match := self._first(text, position, ended=ended)) is not None:
            mark, start, end, open_ended = match
            if open_ended:
                if len(text) - start > self._policy.max_match:
                    return stop(start - begin, "a match does not end")
                return self._decided(text, start, hold_back(len(text) - start), changes)
            if self._policy.stops:
                return stop(start - begin, mark)
            changes.append(Rewrite(start - begin, end - begin, mark))
            position = end
        return self._decided(text, len(text), ALLOW, changes)

    def _first(self, text: str, position: int, *, ended: bool) -> tuple[str, int, int, bool] | None:
        """Return mark, start and end of the match that begins first, and whether more text may change it."""
        best: tuple[str, int, int, bool] | None = None
        for mark, pattern in self._policy.patterns:
            match = search(pattern, text, position, partial=not ended)
            if match is not None and match.start() < match.end() and (best is None or match.start() < best[1]):
                best = (mark, match.start(), match.end(), not ended and match.end() == len(text))
        return best

    def _decided(self, text: str, shown_to: int, decision: TextDecision, changes: list[Rewrite]) -> TextDecision:
        self._context = text[max(0, shown_to - _CONTEXT) : shown_to]
        return rewrite(*changes, num_held=decision.num_held) if changes else decision


def search(pattern: "regex.Pattern[str]", text: str, position: int, *, partial: bool) -> "regex.Match[str] | None":
    """Return the first match from `position` on; raises `TimeoutError` where that takes too long.

    `regex` counts the time of all threads of the process, in which an engine may compute with several: a search is
    late only where its own thread has used up the time.
    """
    began = time.thread_time()
    while True:
        try:
            return pattern.search(text, position, partial=partial, timeout=_TIMEOUT_S)
        except TimeoutError:
            if time.thread_time() - began >= _TIMEOUT_S:
                raise


def _compiled(mark: str, pattern: str) -> regex.Pattern[str]:
    try:
        return regex.compile(pattern, regex.DOTALL)
    except regex.error as error:
        raise ConfigError(f"pattern {mark!r} is {pattern[:64]!r}: {error}; allowed: a regular expression") from None


class Repetition:
    """Ends an answer where a line of `min_characters` or more comes for the `max_times`-th time within `last` lines."""

    inline = True

    def __init__(self, *, max_times: int = 5, min_characters: int = 8, last: int = 64) -> None:
        """Raises `ConfigError` for bounds that nothing can meet."""
        if not 2 <= max_times <= last:
            raise ConfigError(f"max_times is {max_times} with last {last}; allowed: 2 to last", param="max_times")
        self.max_times = max_times
        self.min_characters = min_characters
        self.last = last

    def begin(self, answer: AnswerFacts) -> "_RepetitionReading":
        return _RepetitionReading(self)


class _RepetitionReading:
    def __init__(self, policy: Repetition) -> None:
        self._policy = policy
        self._lines: deque[int] = deque(maxlen=policy.last)
        self._line = ""

    def look(self, pending: str, *, ended: bool) -> TextDecision:
        """Stop after the line that comes once too often; nothing is ever held back."""
        *whole, rest = (self._line + pending).split("\n")
        position = -len(self._line)
        for line in whole:
            position += len(line) + 1
            if len(line.strip()) < self._policy.min_characters:
                continue
            self._lines.append(hash(line.strip()))
            if self._lines.count(hash(line.strip())) >= self._policy.max_times:
                return stop(position, f"a line came {self._policy.max_times} times")
        self._line = rest[-_LONGEST:]
        return ALLOW


_LONGEST = 4096  # characters of a line that are remembered while it is written
