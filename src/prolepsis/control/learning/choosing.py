"""Which requests are worth keeping as examples: those that drafts fit badly, and some of the rest; in bounded time."""

HALF_LIFE = 200.0  # requests of a traffic class after which one has half its weight in the norm
SHARE_OF_REST = 0.25  # of requests that drafts fit well, or that show nothing: what was learnt is not to be forgotten
SHARE_OF_TIME = 0.005  # of the time that passes, for making examples
BURST_S = 1.0  # time for making examples that may be saved up
_DECAY = 0.5 ** (1.0 / HALF_LIFE)


class Chooser:
    """Chooses by traffic class, and keeps account of the time that examples took; has neither clock nor chance."""

    def __init__(self) -> None:
        self._norms: dict[str, tuple[float, float]] = {}  # decayed mean of tokens a pass, and number of requests
        self.spent_s = 0.0  # making examples

    def choose(self, traffic_class: str, tokens_a_pass: float | None, *, by_chance: bool) -> bool:
        """Return whether a request is kept: `by_chance`, or as it is below the norm of its class.

        `tokens_a_pass`: None if it was decoded plainly. It counts for the norm of those after it.
        """
        if tokens_a_pass is None:
            return by_chance
        mean, number = self._norms.get(traffic_class, (0.0, 0.0))
        number = number * _DECAY + 1.0
        self._norms[traffic_class] = mean + (tokens_a_pass - mean) / number, number
        return by_chance or tokens_a_pass < mean

    def has_time(self, elapsed_s: float) -> bool:
        """Return whether examples took no more than their share of the time since the begin, `elapsed_s` ago.

        Time that was not spent is saved up to `BURST_S`.
        """
        allowed_s = SHARE_OF_TIME * elapsed_s
        self.spent_s = max(self.spent_s, allowed_s - BURST_S)
        return self.spent_s <= allowed_s
