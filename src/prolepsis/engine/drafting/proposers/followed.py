"""A place in a text that a sequence follows with changes: an edited file, a predicted output, a client's draft.

The readable reference of `sources/followed.h`. The anchor says where in the text the sequence goes on. A
committed token that the text has there moves it. After another one the sequence may go on in three ways: the token was
inserted (the text goes on at the anchor), it replaced one (behind as many tokens as are new), or some were left out
(behind the nearest place that ends as the sequence does). All are guesses for the next draft. The anchor moves only
once enough tokens in a row are equal again, so that new text, however long, does not lead it away.
"""

from collections.abc import Sequence

FOLLOWED_BONUS = 8  # a token of a text that is followed is as good as one behind so many more equal tokens
_NEAREST_BONUS, _REPLACED, _INSERTED = 1, 1, 0  # guesses, in equal tokens
_MOST_REPLACED = 3
_SURE = 4  # equal tokens after which the sequence goes on there
_AHEAD, _BEHIND = 128, 32  # places looked at around the anchor


class FollowedPlace:
    """Position in `source` from which it continues like the sequence; `is_own`: the source is the sequence itself."""

    def __init__(self, source: Sequence[int], anchor: int, run: int, *, is_own: bool) -> None:
        self._source = source
        self._anchor = anchor
        self._run = run  # equal tokens
        self._num_new = 0  # tokens since the anchor
        self.is_own = is_own

    @property
    def goes_on(self) -> bool:
        """Whether the last token was the one that the text has."""
        return self._num_new == 0

    def follow(self, tokens: Sequence[int], first: int) -> None:
        for end in range(first + 1, len(tokens) + 1):
            known = min(end - 1, len(self._source)) if self.is_own else len(self._source)
            if self._num_new == 0 and self._anchor < known and self._source[self._anchor] == tokens[end - 1]:
                self._anchor += 1
                self._run += 1
                continue
            self._num_new += 1
            place, match = self._nearest(tokens, end)
            if match == _SURE:
                self._anchor, self._run, self._num_new = place, match, 0

    def guesses(self, tokens: Sequence[int]) -> dict[int, int]:
        """Return where the text may go on, and how many equal tokens that is worth."""
        if self._num_new == 0:
            return {self._anchor: self._run + FOLLOWED_BONUS}
        place, match = self._nearest(tokens, len(tokens))
        guesses = {place: match + _NEAREST_BONUS} if match else {}
        guesses.setdefault(self._anchor, _INSERTED)
        if self._num_new <= _MOST_REPLACED:
            guesses.setdefault(self._anchor + self._num_new, _REPLACED)
        return guesses

    def _nearest(self, tokens: Sequence[int], end: int) -> tuple[int, int]:
        """Return the place near the anchor with the most of the new tokens before it, the first ahead, and how many."""
        last = min(self._anchor + _AHEAD, end - 1 if self.is_own else len(self._source))
        ahead, behind = range(self._anchor + 1, last + 1), range(self._anchor, max(0, self._anchor - _BEHIND), -1)
        most, best, longest = min(self._num_new, _SURE), 0, 0
        for places in (ahead, behind):
            for place in places:
                match = 0
                while match < min(most, place) and self._source[place - 1 - match] == tokens[end - 1 - match]:
                    match += 1
                if match > longest:
                    best, longest = place, match
                if longest == most:
                    return best, longest
        return best, longest
