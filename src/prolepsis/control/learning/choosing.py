"""Which requests are worth keeping as examples: those that drafts fit badly, and some of the rest; in bounded time."""

from dataclasses import dataclass

HALF_LIFE = 200.0  # requests of a traffic class after which one has half its weight in the norm
SHARE_OF_REST = 0.25  # of requests that drafts fit well, or that show nothing: what was learnt is not to be forgotten
SHARE_OF_TIME = 0.005  # of the time that passes, for making examples
BURST_S = 1.0  # time for making examples that may be saved up
_DECAY = 0.5 ** (1.0 / HALF_LIFE)


@dataclass(frozen=True, slots=True)
class ClassNorm:
    """The decayed mean of a traffic class's tokens a pass."""

    mean: float = 0.0
    weight: float = 0.0  # decayed number of requests

    def with_one(self, tokens_a_pass: float) -> "ClassNorm":
        weight = self.weight * _DECAY + 1.0
        return ClassNorm(self.mean + (tokens_a_pass - self.mean) / weight, weight)


class Chooser:
    """Chooses by traffic class, and keeps account of the time that examples took; has neither clock nor chance."""

    def __init__(self) -> None:
        self._norms: dict[str, ClassNorm] = {}
        self._spent_s = 0.0

    def choose(self, traffic_class: str, tokens_a_pass: float | None, drawn: float) -> bool:
        """Return whether a request is kept: it is below the norm of its class, or `drawn`, in [0, 1), is in the share.

        `tokens_a_pass`: None if it was decoded plainly. It counts for the norm of those after it.
        """
        norm = self._norms.get(traffic_class, ClassNorm())
        if tokens_a_pass is not None:
            self._norms[traffic_class] = norm.with_one(tokens_a_pass)
        is_below = tokens_a_pass is not None and tokens_a_pass < norm.mean
        return is_below or drawn < SHARE_OF_REST

    def spent(self, seconds: float) -> None:
        self._spent_s += seconds

    def has_time(self, elapsed_s: float) -> bool:
        """Return whether examples took no more than their share of the time since the begin, `elapsed_s` ago.

        Time that was not spent is saved up to `BURST_S`.
        """
        allowed_s = SHARE_OF_TIME * elapsed_s
        self._spent_s = max(self._spent_s, allowed_s - BURST_S)
        return self._spent_s <= allowed_s
