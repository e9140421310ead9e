"""Requests as they come in service, for simulated rollouts: alike within a tenant and a conversation, under drift.

Tenants (40, Zipf shares) differ in speed, acceptance and length. Load drifts in waves and steps, common to both arms,
and moves times and errors. A request has its own rate of acceptance, and each of its draft tokens is accepted with
that rate. Requests are seen in the order in which they finish.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
NUM_TENANTS = 40
REQUESTS_PER_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """What is worse on the canary; the default is nothing."""

    times: float = 1.0
    """Factor on milliseconds per token."""
    tail_times: float = 1.0
    """Factor where they are above `tail_above` milliseconds."""
    tail_above: float = math.inf
    cost_times: float = 1.0
    acceptance: float = 0.0
    """Added to the rate of every request."""
    errors: float = 0.0
    """Added to the probability of an error."""


class Traffic:
    """One rollout's stream of requests; `batch` gives the next ones, with the values that each would show on each arm.

    `requests_per_key` > 1: conversations of so many requests, with an effect of their own, stay on one arm.
    `by_tenant`: tenants stay on one arm.
    """

    def __init__(self, seed: int, *, requests_per_key: int = 1, by_tenant: bool = False) -> None:
        self._random = np.random.default_rng(seed)
        self._shares = 1.0 / np.arange(1, NUM_TENANTS + 1)
        self._shares /= self._shares.sum()
        self._speed = self._random.normal(0.0, 0.25, NUM_TENANTS)
        self._rate = self._random.normal(0.0, 0.07, NUM_TENANTS)
        self._length = self._random.normal(0.0, 0.4, NUM_TENANTS)
        self._place = self._random.random(NUM_TENANTS)
        self._requests_per_key, self._by_tenant = requests_per_key, by_tenant
        self._clock, self._step = float(self._random.random() * 3600.0), 0.0

    def batch(self, number: int, share: float, damage: Damage) -> tuple[NDArray[np.bool_], Mapping[str, Values]]:
        """Return who went to the canary [number], and values by metric [number]; NaN where a metric does not apply."""
        r = self._random
        keys = -(-number // self._requests_per_key)
        key = np.repeat(np.arange(keys), self._requests_per_key)[
            :number
        ]  # requests of a conversation follow each other
        tenant = r.choice(NUM_TENANTS, keys, p=self._shares)[key]
        canary = (self._place[tenant] if self._by_tenant else r.random(keys)[key]) < share
        conversation = r.normal(0.0, 0.2 if self._requests_per_key > 1 else 0.0, keys)[key]
        arrival = self._clock + np.cumsum(r.exponential(1.0 / REQUESTS_PER_S, number))
        self._clock, self._step = float(arrival[-1]), 0.7 * self._step + float(r.normal(0.0, 0.1))
        load = 0.2 * np.sin(arrival / 600.0) + self._step
        tokens = np.maximum(4.0, np.exp(4.5 + self._length[tenant] + r.normal(0.0, 0.6, number)).round())
        ms = np.exp(1.6 + self._speed[tenant] + load + conversation + r.normal(0.0, 0.25, number))
        ms = np.where(canary, damage.times * np.where(ms > damage.tail_above, damage.tail_times * ms, ms), ms)
        rate = 0.6 + self._rate[tenant] + 0.5 * conversation + r.normal(0.0, 0.08, number) + damage.acceptance * canary
        drafted = np.maximum(8, (tokens * 1.5).astype(np.int64))
        values = {
            "acceptance": r.binomial(drafted, np.clip(rate, 0.0, 1.0)) / drafted,
            "ms_per_token": ms,
            "end_to_end_ms": 80.0 * np.exp(load) + tokens * ms,
            "cost_per_token": np.exp(self._speed[tenant] + r.normal(0.0, 0.25, number))
            * np.where(canary, damage.cost_times, 1.0),
            "error": (r.random(number) < 0.01 * np.exp(2 * load) + damage.errors * canary).astype(np.float64),
            "valid": np.where(r.random(number) < 0.4, (r.random(number) < 0.995).astype(np.float64), np.nan),
            "mismatch": np.where(r.random(number) < 0.5, 0.0, np.nan),
        }
        finished = np.argsort(arrival + values["end_to_end_ms"] / 1000.0, kind="stable")
        return canary[finished], {name: column[finished] for name, column in values.items()}
