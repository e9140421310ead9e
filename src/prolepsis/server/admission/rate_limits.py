"""Limits of requests and tokens a minute, by key, tier and tenant."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from prolepsis.control.web.caller import Caller
from prolepsis.control.web.refusals import rate_limited
from prolepsis.core.errors import ConfigError
from prolepsis.core.token_bucket import TokenBucket
from prolepsis.server.admission.load_shedding import BACKGROUND_TIER, TIERS

Kind = Literal["requests", "tokens"]
KINDS: tuple[Kind, Kind] = ("requests", "tokens")
SWEEP_S = 60.0


class Bucket(Protocol):
    """Rest of one allowance: a `TokenBucket`, or a part of one that several servers share."""

    @property
    def per_minute(self) -> float: ...

    def level(self, now: float) -> float:
        """Return what is left for the caller."""

    def wait_s(self, amount: float, now: float) -> float:
        """Return the seconds until `amount` may be taken; one over the allowance waits for a full bucket."""

    def take(self, amount: float, now: float) -> None: ...

    def give(self, amount: float, now: float) -> None: ...

    def reset_s(self, now: float) -> float:
        """Return the seconds until all of the allowance is left again."""


Found = tuple[Kind, str, Bucket]
FindBucket = Callable[[Kind, str, int, float], Bucket]
"""Returns the bucket of an owner by kind, owner, allowance a minute and time."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Allowances a minute by whom they hold for.

    Names: `key` each key, `tier:NAME` each key of that tier, `key:ID` that key, `tenant` all keys of each tenant
    together, `tenant:NAME` those of that tenant. The most particular one counts; key and tenant both must allow.
    Background work of a tenant has `tier:background` alone, and takes nothing of its other limits.
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
        if caller.tier == BACKGROUND_TIER:
            if (of_tier := f"tier:{BACKGROUND_TIER}") in allowed:
                yield f"{BACKGROUND_TIER}:{caller.tenant}", allowed[of_tier]
            return
        for owner, names in (
            (f"key:{caller.key_id}", (f"key:{caller.key_id}", f"tier:{caller.tier}", "key")),
            (f"tenant:{caller.tenant}", (f"tenant:{caller.tenant}", "tenant")),
        ):
            limit = next((allowed[name] for name in names if name in allowed), None)
            if limit is not None:
                yield owner, limit


class LocalBuckets:
    """The buckets of one server. Those that are full again are forgotten: a full one is what a new one would be."""

    def __init__(self, now: float) -> None:
        self._buckets: dict[tuple[Kind, str], TokenBucket] = {}
        self._swept_at = now

    def bucket(self, kind: Kind, owner: str, per_minute: int, now: float) -> TokenBucket:
        if now - self._swept_at >= SWEEP_S:
            self._swept_at = now
            self._buckets = {name: bucket for name, bucket in self._buckets.items() if bucket.reset_s(now) > 0}
        return self._buckets.setdefault((kind, owner), TokenBucket(per_minute, per_minute, now))


class RateLimits:
    """Applies the token buckets of a caller's key, tier and tenant."""

    def __init__(self, limits: Limits, now: float, find_bucket: FindBucket | None = None) -> None:
        """`find_bucket`: default: buckets of this server alone. Raises `ConfigError` for limits that mean nothing."""
        limits.check()
        self._limits = limits
        self._find_bucket = find_bucket or LocalBuckets(now).bucket

    def reserve(self, caller: Caller, tokens: int, now: float) -> dict[str, str]:
        """Take a request and `tokens` from every bucket that applies, or from none; return headers of the reply.

        Raises `Refused` (429). More tokens than a minute's allowance are let in when the bucket is full: it is then in
        debt until the answer is settled and time has paid the rest.
        """
        amounts: dict[Kind, int] = {"requests": 1, "tokens": tokens}
        entries = self._found(caller, now)
        _check(entries, amounts, now)
        for kind, _, bucket in entries:
            bucket.take(amounts[kind], now)
        return _headers(entries, now)

    def check(self, caller: Caller, now: float) -> None:
        """Raise `Refused` (429) where not even a request of no tokens is let in; takes nothing."""
        _check(self._found(caller, now), {"requests": 1, "tokens": 0}, now)

    def settle(self, caller: Caller, reserved: int, used: int, now: float) -> None:
        """Give back the tokens that were reserved and not used; charge what was used beyond."""
        for owner, allowed in self._limits.applying("tokens", caller):
            self._find_bucket("tokens", owner, allowed, now).give(reserved - used, now)

    def _found(self, caller: Caller, now: float) -> list[Found]:
        return [
            (kind, owner, self._find_bucket(kind, owner, allowed, now))
            for kind in KINDS
            for owner, allowed in self._limits.applying(kind, caller)
        ]


def _check(entries: list[Found], amounts: Mapping[Kind, int], now: float) -> None:
    for kind, owner, bucket in entries:
        wait_s = bucket.wait_s(amounts[kind], now)
        if wait_s > 0:
            whose = owner.replace(":", " ", 1)
            message = (
                f"Rate limit of {whose} reached: {bucket.per_minute:.0f} {kind} a minute, "
                f"{max(0, int(bucket.level(now)))} left, {amounts[kind]} asked for; try again in {_duration(wait_s)}."
            )
            raise rate_limited(message, kind, wait_s, _headers(entries, now))


def _headers(entries: list[Found], now: float) -> dict[str, str]:
    """Return OpenAI's headers for the tightest bucket of each kind; none without limits."""
    headers: dict[str, str] = {}
    for kind in KINDS:
        buckets = [bucket for bucket_kind, _, bucket in entries if bucket_kind == kind]
        if buckets:
            tightest = min(buckets, key=lambda bucket: bucket.level(now))
            headers[f"x-ratelimit-limit-{kind}"] = f"{tightest.per_minute:.0f}"
            headers[f"x-ratelimit-remaining-{kind}"] = str(max(0, int(tightest.level(now))))
            headers[f"x-ratelimit-reset-{kind}"] = _duration(tightest.reset_s(now))
    return headers


def _duration(seconds: float) -> str:
    """As OpenAI writes them: 350ms, 6.5s, 1m2s."""
    if seconds < 1:
        return f"{max(0, round(seconds * 1000))}ms"
    minutes, rest = divmod(round(seconds, 1), 60)
    return f"{int(minutes)}m{rest:g}s" if minutes else f"{rest:g}s"
