"""A share of what comes along, drawn one by one."""

import random


class Share:
    """Draws about every (1 / share)-th, half of that to one and a half apart: spread evenly, yet in no pattern."""

    def __init__(self, share: float, *, randomness: random.Random | None = None) -> None:
        """`share` in [0, 1]."""
        self._share = share
        self._random = randomness or random.Random()
        self._left = self._gap()

    def draw(self) -> bool:
        """Return whether the next one belongs to the share."""
        if self._share in (0.0, 1.0):
            return self._share == 1.0
        self._left -= 1.0
        if self._left > 0.0:
            return False
        self._left += self._gap()
        return True

    def _gap(self) -> float:
        return self._random.uniform(0.5, 1.5) / self._share if self._share else 0.0
