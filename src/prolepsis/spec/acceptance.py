"""How likely each drafted token is accepted, learnt online from what was committed (ALGORITHMS 4.3).

A trial is a drafted token whose parent was committed; a hit, that it was committed too. Every draft is scored against
the tokens that were later committed, whether it was verified, cut or not chosen at all: no label depends on what the
window verified, so nothing is censored. A right guess tells the same as verification would.
"""

from dataclasses import dataclass

from prolepsis.spec.draft import ROOT, Draft

_HALF_LIFE = 400.0  # trials
_DECAY = 0.5 ** (1.0 / _HALF_LIFE)
_PRIOR_TRIALS = 8.0
_MAX_POSITION = 8  # deeper positions share one estimate
_TILT_TRIALS = 12.0  # weight of "this request is like all others"
_TILT_DECAY = 0.5 ** (1.0 / 60.0)
_CERTAIN = 0.998


@dataclass(slots=True)
class Rate:
    """Decayed counts of one cell."""

    hits: float = 0.0
    trials: float = 0.0

    def record(self, hit: float, decay: float = _DECAY) -> None:
        self.hits = self.hits * decay + hit
        self.trials = self.trials * decay + 1.0

    def shrunk(self, prior: float, weight: float = _PRIOR_TRIALS) -> float:
        return (self.hits + weight * prior) / (self.trials + weight)


@dataclass(slots=True)
class Tilt:
    """How much better or worse one request fares than the estimates over all requests say."""

    hits: float = 0.0
    expected: float = 0.0

    def record(self, hit: float, expected: float) -> None:
        self.hits = self.hits * _TILT_DECAY + hit
        self.expected = self.expected * _TILT_DECAY + expected

    @property
    def factor(self) -> float:
        return (self.hits + _TILT_TRIALS) / (self.expected + _TILT_TRIALS)


class AcceptanceEstimator:
    """Rates per (proposer, bucket, position), each shrunk to the bucket's, that to the draft's own or the pooled one.

    A request's own tilt multiplies the conditional rates of its drafts. `prior` is the rate of a proposer that nobody
    has seen yet: optimistic, so that a cold start drafts and learns.
    """

    def __init__(self, prior: float = 0.6) -> None:
        self._prior = prior
        self._pooled: dict[str, Rate] = {}
        self._buckets: dict[tuple[str, int], Rate] = {}
        self._positions: dict[tuple[str, int, int], Rate] = {}

    def rate(self, proposer: str, bucket: int, position: int, prior: float | None = None) -> float:
        """Return the chance that the token at `position` (0 first) is accepted, given that all before it were."""
        if prior is None:
            pooled = self._pooled.get(proposer)
            prior = pooled.shrunk(self._prior) if pooled else self._prior
        in_bucket = self._buckets.get((proposer, bucket))
        if in_bucket is None:
            return prior
        rate = in_bucket.shrunk(prior)
        here = self._positions.get((proposer, bucket, min(position, _MAX_POSITION)))
        return here.shrunk(rate) if here else rate

    def survival(self, proposer: str, bucket: int, length: int) -> tuple[float, ...]:
        """Return, for each position of a chain, the chance that it and all before it are accepted: never rising."""
        alive = 1.0
        survivals = []
        for position in range(length):
            alive *= self.rate(proposer, bucket, position)
            survivals.append(alive)
        return tuple(survivals)

    def survivals(self, draft: Draft, tilt: Tilt | None = None) -> tuple[float, ...]:
        """Return the calibrated survival of each node of a chain or tree: never above its parent's."""
        factor = tilt.factor if tilt else 1.0
        alive: list[float] = []
        depths: list[int] = []
        for i, parent in enumerate(draft.parents):
            depth, above = (0, 1.0) if parent == ROOT else (depths[parent] + 1, alive[parent])
            rate = self.rate(draft.proposer, draft.bucket_of(i), depth, draft.conditional(i)) * factor
            depths.append(depth)
            alive.append(above * min(rate, _CERTAIN))
        return tuple(alive)

    def record(self, draft: Draft, node: int, depth: int, *, hit: bool, tilt: Tilt | None = None) -> None:
        """Count one trial: the parent of `node` (at `depth`, 0 below the root) was committed; `hit`: so was `node`."""
        proposer, bucket = draft.proposer, draft.bucket_of(node)
        if tilt:
            tilt.record(hit, self.rate(proposer, bucket, depth, draft.conditional(node)))
        self._pooled.setdefault(proposer, Rate()).record(hit)
        self._buckets.setdefault((proposer, bucket), Rate()).record(hit)
        self._positions.setdefault((proposer, bucket, min(depth, _MAX_POSITION)), Rate()).record(hit)
