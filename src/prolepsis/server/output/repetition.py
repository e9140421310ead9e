"""Built-in output policy: an answer that says the same again and again ends."""

from collections import deque

from prolepsis.core.errors import ConfigError
from prolepsis.server.output.policy import ALLOW, AnswerFacts, Decision, stop


class Repetition:
    """Ends an answer where a line of `min_characters` or more comes for the `max_times`-th time within `last` lines."""

    inline = True

    def __init__(self, *, max_times: int = 5, min_characters: int = 8, last: int = 64) -> None:
        """Raises `ConfigError` for bounds that nothing can meet."""
        if not 2 <= max_times <= last:
            raise ConfigError(f"max_times is {max_times} with last {last}; allowed: 2 to last", param="max_times")
        self._max_times = max_times
        self._min_characters = min_characters
        self._last = last

    def begin(self, answer: AnswerFacts) -> "_Reading":
        return _Reading(self._max_times, self._min_characters, self._last)


class _Reading:
    def __init__(self, max_times: int, min_characters: int, last: int) -> None:
        self._max_times = max_times
        self._min_characters = min_characters
        self._lines: deque[int] = deque(maxlen=last)
        self._line = ""

    def look(self, pending: str, *, ended: bool) -> Decision:
        """Stop after the line that comes once too often; nothing is ever held back."""
        *whole, rest = (self._line + pending).split("\n")
        position = -len(self._line)
        for line in whole:
            position += len(line) + 1
            if self._comes_too_often(line):
                return stop(position, f"a line came {self._max_times} times")
        self._line = rest[-_LONGEST:]
        return ALLOW

    def _comes_too_often(self, line: str) -> bool:
        line = line.strip()
        if len(line) < self._min_characters:
            return False
        self._lines.append(hash(line))
        return self._lines.count(hash(line)) >= self._max_times


_LONGEST = 4096
"""Characters of a line that are remembered while it is written."""
