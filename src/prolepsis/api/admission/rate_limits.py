"""A token bucket from which an amount is taken before it is known, and what was not used is given back."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from prolepsis.api.admission.load_shedding import TIERS
from prolepsis.core.errors import ConfigError
from prolepsis.web.caller import Caller
from prolepsis.web.refusals import rate_limited

PERIOD_S = 60.0


@dataclass(slots=True)
class Bucket:
    """Holds at most a minute's allowance and fills evenly; `level` is below 0 while more was used than reserved.

    `limits` has no bucket to give back to: its counters only grow within a window, so a reservation of prompt plus
    max_tokens would count in full however short the answer was.
    """

    per_minute: int
    level: float
    filled_at: float

    def wait_s(self, amount: float, now: float) -> float:
        """Return the seconds until `amount` is there; one over the allowance waits for all of the allowance."""
        self._fill(now)
        missing = min(amount, self.per_minute) - self.level
        return max(0.0, missing) * PERIOD_S / self.per_minute

    def take(self, amount: float) -> None:
        self.level -= amount

    def give(self, amount: float, now: float) -> None:
        self._fill(now)
        self.level = min(self.per_minute, self.level + amount)

    def reset_s(self, now: float) -> float:
        """Return the seconds until it is full again."""
        self._fill(now)
        return (self.per_minute - self.level) * PERIOD_S / self.per_minute

    def _fill(self, now: float) -> None:
        rate = self.per_minute / PERIOD_S
        self.level = min(self.per_minute, self.level + (now - self.filled_at) * rate)
        self.filled_at = now


Kind = Literal["requests", "tokens"]
KINDS: tuple[Kind, Kind] = ("requests", "tokens")
SWEEP_S = 60.0
Found = tuple[Kind, str, Bucket]
"""A bucket that applies, and whose it is."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Allowances a minute by whom they hold for.

    Names: `key` each key, `tier:NAME` each key of that tier, `key:ID` that key, `tenant` all keys of each tenant
    together, `tenant:NAME` those of that tenant. The most particular one counts; key and tenant both must allow.
    """

    requests: Mapping[str, int]
    tokens: Mapping[str, int]

    def of(self, kind: Kind) -> Mapping[str, int]:
        return self.requests if kind == "requests" else self.tokens

    def check(self) -> None:
        """Raise `ConfigError` for names and values that mean nothing."""
        for kind in KINDS:
            for name, allowed in self.of(kind).items():
                group, _, member = name.partition(":")
                known = name in ("key", "tenant") or (member and group in ("key", "tenant", "tier"))
                if not known or (group == "tier" and member not in TIERS):
                    raise ConfigError(
                        f"{kind}_per_minute names {name!r}; allowed: key, tenant, key:ID, tenant:NAME, and "
                        f"tier:NAME with {', '.join(TIERS)}",
                        param=f"{kind}_per_minute",
                    )
                if allowed < 1:
                    message = f"{kind}_per_minute of {name!r} is {allowed}; allowed: 1 or more"
                    raise ConfigError(message, param=f"{kind}_per_minute")

    def applying(self, kind: Kind, caller: Caller) -> Iterator[tuple[str, int]]:
        """Yield (whose bucket, allowance) for the limits that hold for a caller."""
        allowed = self.of(kind)
        for owner, names in (
            (f"key:{caller.key_id}", (f"key:{caller.key_id}", f"tier:{caller.tier}", "key")),
            (f"tenant:{caller.tenant}", (f"tenant:{caller.tenant}", "tenant")),
        ):
            found = next((allowed[name] for name in names if name in allowed), None)
            if found is not None:
                yield owner, found


class RateLimits:
    """Owns the buckets. Those that are full again are forgotten: a full one is what a new one would be."""

    def __init__(self, limits: Limits, now: float) -> None:
        limits.check()
        self._limits = limits
        self._buckets: dict[tuple[Kind, str], Bucket] = {}
        self._swept_at = now

    def reserve(self, caller: Caller, tokens: int, now: float) -> dict[str, str]:
        """Take a request and `tokens` from every bucket that applies, or from none; return headers of the reply.

        Raises `Refused` (429). More tokens than a minute's allowance are let in when the bucket is full: it is then in
        debt until the answer is settled and time has paid the rest.
        """
        self._sweep(now)
        amounts: dict[Kind, int] = {"requests": 1, "tokens": tokens}
        found = self._found(caller, now)
        _check(found, amounts, now)
        for kind, _, bucket in found:
            bucket.take(amounts[kind])
        return _headers(found, now)

    def check(self, caller: Caller, now: float) -> None:
        """Raise `Refused` (429) where not even a request of no tokens is let in; takes nothing."""
        _check(self._found(caller, now), {"requests": 1, "tokens": 0}, now)

    def settle(self, caller: Caller, reserved: int, used: int, now: float) -> None:
        """Give back the tokens that were reserved and not used; charge what was used beyond."""
        for owner, allowed in self._limits.applying("tokens", caller):
            self._bucket("tokens", owner, allowed, now).give(reserved - used, now)

    def _found(self, caller: Caller, now: float) -> list[Found]:
        return [
            (kind, owner, self._bucket(kind, owner, allowed, now))
            for kind in KINDS
            for owner, allowed in self._limits.applying(kind, caller)
        ]

    def _bucket(self, kind: Kind, owner: str, allowed: int, now: float) -> Bucket:
        return self._buckets.setdefault((kind, owner), Bucket(allowed, allowed, now))

    def _sweep(self, now: float) -> None:
        if now - self._swept_at >= SWEEP_S:
            self._swept_at = now
            self._buckets = {name: bucket for name, bucket in self._buckets.items() if bucket.reset_s(now) > 0}


def _check(found: list[Found], amounts: Mapping[Kind, int], now: float) -> None:
    """Raise `Refused` for the first bucket that holds too little."""
    for kind, owner, bucket in found:
        wait_s = bucket.wait_s(amounts[kind], now)
        if wait_s > 0:
            whose = owner.replace(":", " ", 1)
            message = (
                f"Rate limit of {whose} reached: {bucket.per_minute} {kind} a minute, "
                f"{max(0, int(bucket.level))} left, {amounts[kind]} asked for; try again in {_duration(wait_s)}."
            )
            raise rate_limited(message, kind, wait_s, _headers(found, now))


def _headers(found: list[Found], now: float) -> dict[str, str]:
    """Of the tightest bucket of each kind, as OpenAI names them; none where nothing is limited."""
    headers: dict[str, str] = {}
    for kind in KINDS:
        buckets = [bucket for bucket_kind, _, bucket in found if bucket_kind == kind]
        if buckets:
            tightest = min(buckets, key=lambda bucket: bucket.level)
            headers[f"x-ratelimit-limit-{kind}"] = str(tightest.per_minute)
            headers[f"x-ratelimit-remaining-{kind}"] = str(max(0, int(tightest.level)))
            headers[f"x-ratelimit-reset-{kind}"] = _duration(tightest.reset_s(now))
    return headers


def _duration(seconds: float) -> str:
    """As OpenAI writes them: 350ms, 6.5s, 1m2s."""
    if seconds < 1:
        return f"{max(0, round(seconds * 1000))}ms"
    minutes, rest = divmod(round(seconds, 1), 60)
    return f"{int(minutes)}m{rest:g}s" if minutes else f"{rest:g}s"
