"""When to ask a proposer that does not pay, so that a bad estimate can recover: seldom, and ever more seldom."""

_FIRST_BACKOFF = 16  # steps between two probes
_LONGEST_BACKOFF = 512
_DRIFT = 1.25  # promise over that at the last probe from which on waiting starts anew
_NOISE = 0.02  # tokens


class Probes:
    """Grants a probe after 16 steps unasked, then after twice as many, up to 512; anew when the promise has risen."""

    def __init__(self) -> None:
        self._waited = 0
        self._backoff = _FIRST_BACKOFF
        self._promise: float | None = None

    def due(self, promise: float) -> bool:
        """Count a step unasked; return whether to probe. `promise`: tokens a sample that a probe may bring."""
        if self._promise is None:
            self._promise = promise
        elif promise > _DRIFT * self._promise + _NOISE:  # other requests, another load
            self._promise, self._backoff = promise, _FIRST_BACKOFF
        self._waited += 1
        if self._waited < self._backoff:
            return False
        self._waited, self._backoff, self._promise = 0, min(_LONGEST_BACKOFF, 2 * self._backoff), promise
        return True

    def restart(self) -> None:
        """It was asked because it pays."""
        self._waited, self._backoff, self._promise = 0, _FIRST_BACKOFF, None
