"""Simulated months of learning without shift: how often does a head reach users that is no better, and a better one?

Each week a candidate is compared with the champion on held-out documents by `judge` of `training.evaluation`. One that
passes goes to the canary stages of a trial, whose guardrail demands the same gain of each request's tokens a pass,
judged after every request as in `guarantees`. What the candidate gains offline and live may differ: an overfitted one
gains on documents that are like those it learnt, a damaged export on none.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from prolepsis.control.statistics.guardrail import Guardrail
from prolepsis.control.statistics.judge import Levels
from prolepsis.control.statistics.means import Ratio
from prolepsis.training.acceptance import DEPTH
from prolepsis.training.evaluation import BASE_DOCUMENTS, DocumentScore, ScorePair, judge
from tests.simulation.guarantees import calibrated, run_stage
from tests.simulation.rollout_traffic import Damage, Traffic, Values

GAIN, LOSS = 0.03, 0.02
STAGES = (0.10, 0.50)
RUNS_A_MONTH = 4
SEED_NOISE = 0.02
"""Standard deviation of a head's tokens a pass between trainings on the same traffic."""
NUM_HELD_OUT = 240
SHARE_OF_REST = 0.25
"""Of documents for which the champion drafts no worse than usual: a server keeps all others (`learning.choosing`)."""
_FRESH = 0.3
"""Share of tokens at which two heads are right or wrong independently of each other; at the others both alike."""
_LATER = 0.9  # a later token of a chain is right so much less often than the first
_OWN_NOISE = 0.1  # how differently two equally good heads draft for the same document
_LENGTH_NOISE = 0.35

Outcome = Literal["rejected", "rolled back", "undecided", "promoted"]


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """How one candidate ended; `num_requests` were judged in its trial."""

    outcome: Outcome
    gain: float  # its true gain over the champion, live
    num_requests: int = 0


def score_pairs(gain: float, number: int, seed: int, kind: str = "chat", *, chosen: bool = False) -> list[ScorePair]:
    """Return scores of documents that differ in length and difficulty; the candidate's tokens a pass are 1 + `gain`.

    `chosen`: as a server chooses what it keeps, by what the champion drafted.
    """
    r = np.random.default_rng(seed)
    pairs = list[ScorePair]()
    while len(pairs) < number:
        rate, length = float(r.beta(5.0, 4.0)), 30 + int(r.geometric(1 / 70))
        better = rate ** (_exponent(gain) * np.exp(_OWN_NOISE * r.normal()))
        luck = r.random((length, DEPTH))
        other = np.where(r.random((length, 1)) < _FRESH, r.random((length, DEPTH)), luck)
        pair = _score(kind, rate, luck), _score(kind, better, other)
        if not chosen or sum(pair[0].hits) < _usual() * length or r.random() < SHARE_OF_REST:
            pairs.append(pair)
    return pairs


def _score(kind: str, rate: float, luck: Values) -> DocumentScore:
    """Return the score of a head whose first drafted token is right at `rate`; `luck` is [length, DEPTH]."""
    rates = rate * np.array([1.0, *[_LATER] * (DEPTH - 1)])
    hits = np.logical_and.accumulate(luck < rates, axis=1).sum(0).tolist()
    return DocumentScore(kind, tuple(hits), (len(luck), *hits[:-1]))


@cache
def _usual() -> float:
    """Return how many drafted tokens a step accepts in the mean of all documents."""
    rates = np.random.default_rng(0).beta(5.0, 4.0, 20_000)
    return float((rates + _LATER * rates**2 + _LATER**2 * rates**3).mean())


@cache
def _exponent(gain: float) -> float:
    """Return the power of a document's rate that makes the tokens a pass of all documents 1 + `gain` as many."""
    r = np.random.default_rng(0)
    rates, noise = r.beta(5.0, 4.0, 20_000), np.exp(_OWN_NOISE * r.normal(size=20_000))

    def tokens(of: Values) -> float:
        return float(1.0 + (of + _LATER * of**2 + _LATER**2 * of**3).mean())

    low, high = 0.05, 20.0
    for _ in range(40):
        middle = (low * high) ** 0.5
        low, high = (
            (middle, high) if tokens(rates ** (middle * noise)) > (1.0 + gain) * tokens(rates) else (low, middle)
        )
    return low


class TrialTraffic(Traffic):
    """Requests with their tokens a pass; the canary's are 1 + `gain` times as many."""

    def __init__(self, seed: int, gain: float) -> None:
        super().__init__(seed)
        self._gain = gain

    def batch(self, number: int, share: float, damage: Damage) -> tuple[NDArray[np.bool_], Mapping[str, Values]]:
        canary, values = super().batch(number, share, damage)
        rate = values["acceptance"]
        noise = np.exp(self._random.normal(-(_LENGTH_NOISE**2) / 2, _LENGTH_NOISE, number))
        length = (1.0 + rate + rate**2 + rate**3) * noise * np.where(canary, 1.0 + self._gain, 1.0)
        return canary, {"acceptance_length": length}


def trial(gain: float, seed: int, *, wanted: float = GAIN, replay: bool = False) -> tuple[Outcome, int]:
    """Return how the canary of a candidate ends, and after how many requests; no judgement sends it back too."""
    demand = Guardrail(
        name="learnt", metric="acceptance_length", better="higher", measure=Ratio(margin=-wanted, num_points=33)
    )
    traffic = TrialTraffic(seed, gain)
    guardrails, num_requests = calibrated(traffic, (demand,)), 0
    for share in STAGES:
        levels = Levels(num_stages=len(STAGES))
        stage = run_stage(traffic, guardrails, share, Damage(), replay=replay, levels=levels)
        num_requests += stage.num_requests
        if stage.outcome != "pass":
            return "rolled back" if stage.outcome == "fail" else "undecided", num_requests
    return "promoted", num_requests


def run(gain: float, seed: int, *, offline: float | None = None) -> SimulatedRun:
    """Return how a candidate ends that gains `gain` live, and offline as much unless `offline` says otherwise."""
    own = score_pairs(gain if offline is None else offline, NUM_HELD_OUT, 2 * seed, chosen=True)
    base = score_pairs(0.0, BASE_DOCUMENTS, 2 * seed + 1, "base")
    if not judge(own, base, gain=GAIN, loss=LOSS, megabytes=20.0).passed:
        return SimulatedRun("rejected", gain)
    outcome, num_requests = trial(gain, seed)
    return SimulatedRun(outcome, gain, num_requests)


def month(seed: int, *, offline_bias: float = 0.0) -> list[SimulatedRun]:
    """Return the runs of 30 days without shift: candidates as good as the shipped head, but for noise between seeds.

    `offline_bias`: by how much held-out documents overstate each candidate.
    """
    r, champion, runs = np.random.default_rng(seed), 1.0, []
    for week in range(RUNS_A_MONTH):
        candidate = 1.0 + float(r.normal(0.0, SEED_NOISE))
        gain = round(candidate / champion - 1.0, 3)
        runs.append(run(gain, RUNS_A_MONTH * seed + week, offline=round(gain + offline_bias, 3)))
        champion = candidate if runs[-1].outcome == "promoted" else champion
    return runs


def months(number: int, seed: int, *, offline_bias: float = 0.0) -> list[SimulatedRun]:
    """Return the runs of so many months."""
    return [one for i in range(number) for one in month(1000 * seed + i, offline_bias=offline_bias)]
