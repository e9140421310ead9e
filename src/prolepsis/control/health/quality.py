"""Marks answers whose acceptance is far from the norm of their traffic class: looping, copied or garbled. Pure.

Drafts are accepted one after another where an answer repeats itself or its prompt, and are hardly ever right where it
is garbled. A norm belongs to a traffic class and the heads that draft there. Nothing is judged before it has `LEARN`
answers, and those that loop or are garbled are left out of it.

- looping: the longest run of accepted tokens ends in a stretch that stands there three times. The run has at least
  `SHORTEST` tokens, and six standard deviations more than runs with a loop usually have in the class.
- copied: the run is in the prompt, has at least `SHORTEST` tokens, and is longer than usual by 32 standard deviations,
  as at most one answer in 1,000 is, however the lengths are distributed (Cantelli's inequality).
- garbled: a share of `GARBLED` of all ordinary answers has so few steps whose draft begins right, by the exact tail of
  a beta-binomial: the chance of one varies over answers. Median and upper half of the class say how much, so that a few
  garbled answers from which it was learned hide no others.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, fsum, lgamma, pi, sqrt

from prolepsis.core.reasons import PlainReason
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.stats import Quality, RequestStats

LEARN = 50  # answers of a norm
SHORTEST = 96  # tokens of a run that is marked
GARBLED = 1 / 2000  # of ordinary answers
_LONGEST_PERIOD, _TIMES = 64, 3  # tokens of a stretch that is looked for, and how often it stands there
_LOOPING_SD, _COPIED_SD = 6.0, 32.0
_LEAST_STEPS = 32  # of an answer whose share of right drafts counts
_NOTHING_TO_DRAFT: tuple[PlainReason, ...] = ("no_draft", "not_worth_it", "too_costly")
"""Plain steps in which proposers foresaw nothing, as in nonsense."""
_MEMORY = 1000  # answers that a norm follows, about
_LAST = 500  # answers whose shares of right ones are known
_SD_OF_UPPER = sqrt(pi / 2.0)  # standard deviation over the mean deviation of the upper half, if it is normal
_CHANGED = 100  # garbled answers more than others show that the class has changed: it is learned again


@dataclass(slots=True)
class _Spread:
    """Mean and variance of a figure over answers."""

    number: int = 0
    mean: float = 0.0
    variance: float = 0.0

    def add(self, value: float) -> None:
        self.number = min(self.number + 1, _MEMORY)
        step = (value - self.mean) / self.number
        self.mean += step
        self.variance += step * (value - self.mean) - self.variance / self.number

    def longest(self, deviations: float) -> float:
        """Return the length from which on a run is marked."""
        return max(SHORTEST, self.mean + deviations * sqrt(self.variance))


@dataclass(slots=True)
class _Norm:
    """What is usual in one traffic class."""

    run: _Spread = field(default_factory=_Spread)  # tokens of the longest run
    loop: _Spread = field(default_factory=_Spread)  # the same where it loops, else 0
    right: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_LAST))
    """Share of steps whose draft began right, and the variance of it that few steps explain."""
    surplus: int = 0  # of garbled answers over others, lately

    def is_garbled(self, stats: RequestStats) -> bool:
        """Judge the share of steps whose draft began right, and learn from it where it is usual."""
        num_judged, num_right = stats.first_tokens
        num_steps = num_judged + sum(stats.plain_steps.get(reason, 0) for reason in _NOTHING_TO_DRAFT)
        if num_steps < _LEAST_STEPS:
            return False
        share, number, tail = num_right / num_steps, len(self.right), 1.0
        if number >= LEARN:
            shares, noise = sorted(share for share, _ in self.right), fsum(noise for _, noise in self.right) / number
            middle, upper = shares[number // 2], shares[number // 2 :]
            deviation = (fsum(upper) / len(upper) - middle) * _SD_OF_UPPER
            size = middle * (1.0 - middle) / max(deviation * deviation - noise, 1e-4) - 1.0
            if num_right < middle / 2.0 * num_judged and size > 0.0:  # so load, which lets few draft, garbles nothing
                tail = beta_binomial_tail(num_right, num_steps, middle * size, (1.0 - middle) * size)
        if tail > GARBLED:
            self.right.append((share, share * (1.0 - share) / num_steps))
        self.surplus = max(0, self.surplus + (1 if tail <= GARBLED else -1))
        return tail <= GARBLED


class QualityWatch:
    """The norms of all traffic classes; they begin again with the process. Belongs to one event loop."""

    def __init__(self) -> None:
        self._norms: dict[tuple[str, ...], _Norm] = {}

    def observe(self, request: GenerateRequest, stats: RequestStats, samples: Mapping[int, Sequence[int]]) -> Quality:
        """Judge an answer that has ended, and learn from it; `samples`: its tokens, by sample."""
        if not stats.first_tokens[0] or None in stats.heads.values():
            return "unjudged"
        key = (request.traffic_class, *sorted(f"{name} {head}" for name, head in stats.heads.items()))
        norm, run = self._norms.setdefault(key, _Norm()), stats.longest_run
        tokens = samples.get(run.sample, ())[run.start : run.start + run.length]
        loop = run.length if loops(tokens) else 0
        num_runs, num_shares = norm.run.number, len(norm.right)
        quality: Quality = "ordinary"
        if loop >= norm.loop.longest(_LOOPING_SD):
            quality = "looping"
        elif run.length >= norm.run.longest(_COPIED_SD) and _is_copied(tokens, request):
            quality = "copied"
        elif norm.is_garbled(stats):
            quality = "garbled"
            if norm.surplus == _CHANGED:
                del self._norms[key]
        if quality != "looping":
            norm.run.add(run.length)
            norm.loop.add(loop)
        return quality if (num_shares if quality == "ordinary" else num_runs) >= LEARN else "unjudged"


def loops(tokens: Sequence[int]) -> bool:
    """Return whether tokens end in a stretch that stands there three times, or as often as fills `SHORTEST` tokens."""
    for period in range(1, min(_LONGEST_PERIOD, len(tokens) // _TIMES) + 1):
        end = tokens[-max(SHORTEST, _TIMES * period) :]
        if end[period:] == end[:-period]:
            return True
    return False


def _is_copied(tokens: Sequence[int], request: GenerateRequest) -> bool:
    """Return whether the prompt has the middle of a run, whose ends may be the answer's own, and no prediction."""
    quarter = len(tokens) // 4
    inner, prompt = (f" {' '.join(map(str, part))} " for part in (tokens[quarter:-quarter], request.prompt_token_ids))
    return inner in prompt and not request.prediction_token_ids


def beta_binomial_tail(num: int, of: int, a: float, b: float) -> float:
    """Return the chance of at most `num` successes `of` so many, whose probability is drawn from Beta(a, b)."""

    def log_beta(x: float, y: float) -> float:
        return lgamma(x) + lgamma(y) - lgamma(x + y)

    whole = log_beta(a, b)
    return fsum(
        exp(log_beta(a + k, b + of - k) - whole - log_beta(k + 1, of - k + 1)) / (of + 1) for k in range(num + 1)
    )
