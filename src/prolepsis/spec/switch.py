"""On or off with hysteresis, so that noise around the point where both are equal does not flip it (ALGORITHMS 4.5)."""

_GAIN = 0.045  # share of a step's tokens that a switch must gain, either way
_DECISIONS = 8  # in a row
_HOLD = 32  # decisions that it stays on at least


class Switch:
    """Starts on; `decide` is asked once a step."""

    def __init__(self) -> None:
        self.on = True
        self._streak = 0
        self._held = 0

    def decide(self, gain: float) -> bool:
        """Return whether it is on; `gain`: what being on would gain now, as share of the tokens without."""
        self._held += 1
        against = gain < -_GAIN if self.on else gain > _GAIN
        self._streak = self._streak + 1 if against else 0
        if self._streak >= _DECISIONS and (not self.on or self._held >= _HOLD):
            self.on = not self.on
            self._streak = self._held = 0
        return self.on
