"""What a level of drafting costs, by how many samples share the call: a line, learnt online."""

_DECAY = 0.95  # per call
_RIDGE = 4.0  # weight of the prior slope, in (samples of difference)^2
_PRIOR_SLOPE = 0.05  # of the mean: a further sample reads no weights again
_OUTLIER = 2.0


class LevelCost:
    """Milliseconds of a level = `fixed_ms` + samples * `sample_ms`; 0 until the first call is known."""

    def __init__(self) -> None:
        self.fixed_ms = 0.0
        self.sample_ms = 0.0
        self._weight = self._n = self._nn = self._ms = self._nms = 0.0  # decayed sums

    @property
    def is_known(self) -> bool:
        return self._weight > 0.0

    def learn(self, num_samples: int, num_levels: int, ms: float) -> None:
        """Learn that a call for so many samples that drafted `num_levels` deep took `ms`."""
        if num_levels <= 0 or ms <= 0.0:
            return
        ms /= num_levels
        known = self.fixed_ms + num_samples * self.sample_ms
        if ms < known / _OUTLIER:  # what was learnt before was a start (a compile, cold pages): begin anew
            self._weight = self._n = self._nn = self._ms = self._nms = 0.0
        elif known > 0.0:
            ms = min(ms, _OUTLIER * known)
        self._weight = _DECAY * self._weight + 1.0
        self._n = _DECAY * self._n + num_samples
        self._nn = _DECAY * self._nn + num_samples * num_samples
        self._ms = _DECAY * self._ms + ms
        self._nms = _DECAY * self._nms + num_samples * ms
        self._fit()

    def _fit(self) -> None:
        """Least squares with a ridge towards the prior slope; neither part below 0."""
        mean_n, mean_ms = self._n / self._weight, self._ms / self._weight
        spread = self._nn - self._n * mean_n
        together = self._nms - self._n * mean_ms
        slope = (together + _RIDGE * _PRIOR_SLOPE * mean_ms) / (spread + _RIDGE)
        self.sample_ms = min(max(0.0, slope), mean_ms / mean_n)
        self.fixed_ms = mean_ms - self.sample_ms * mean_n
