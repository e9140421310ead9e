import pytest
from hypothesis import given
from hypothesis import strategies as st

from prolepsis.control.web.caller import DEVELOPER, Caller
from prolepsis.control.web.refusals import Refused
from prolepsis.core.errors import ConfigError
from prolepsis.core.token_bucket import TokenBucket
from prolepsis.server.admission.rate_limits import Limits, LocalBuckets, RateLimits

ANN = Caller("aaaaaaaaaaaa", "acme", frozenset({"client"}), "standard")
BOB = Caller("bbbbbbbbbbbb", "acme", frozenset({"client"}), "premium")


def refusal(limits: RateLimits, caller: Caller, tokens: int, now: float) -> Refused:
    with pytest.raises(Refused) as caught:
        limits.reserve(caller, tokens, now)
    return caught.value


def test_there_are_no_limits_by_default() -> None:
    limits = RateLimits(Limits({}, {}), 0.0)
    for _ in range(1000):
        assert limits.reserve(DEVELOPER, 10**6, 0.0) == {}


def test_requests_of_a_key() -> None:
    limits = RateLimits(Limits({"key": 2}, {}), 0.0)
    assert limits.reserve(ANN, 1, 0.0)["x-ratelimit-remaining-requests"] == "1"
    last = limits.reserve(ANN, 1, 0.0)
    assert last == {
        "x-ratelimit-limit-requests": "2",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "1m0s",
    }
    refused = refusal(limits, ANN, 1, 0.0)
    assert (refused.status, refused.code, refused.kind) == (429, "rate_limit_exceeded", "requests")
    assert (refused.headers["retry-after"], refused.headers["retry-after-ms"]) == ("30", "30000")
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert "key aaaaaaaaaaaa reached: 2 requests a minute" in str(refused)
    limits.reserve(BOB, 1, 0.0)  # another key
    limits.reserve(ANN, 1, 30.0)


def test_unused_tokens_come_back() -> None:
    limits = RateLimits(Limits({}, {"key": 100}), 0.0)
    limits.reserve(ANN, 90, 0.0)
    refused = refusal(limits, ANN, 20, 0.0)
    assert (refused.kind, refused.headers["retry-after"]) == ("tokens", "6")
    limits.settle(ANN, 90, 30, 0.0)
    assert limits.reserve(ANN, 70, 0.0)["x-ratelimit-remaining-tokens"] == "0"


def test_a_reservation_over_the_allowance_goes_into_debt() -> None:
    limits = RateLimits(Limits({}, {"key": 60}), 0.0)
    limits.reserve(ANN, 600, 0.0)
    assert refusal(limits, ANN, 1, 0.0).headers["retry-after"] == "541"
    limits.settle(ANN, 600, 90, 0.0)  # 30 more than a minute allows
    assert refusal(limits, ANN, 1, 0.0).headers["retry-after"] == "31"
    limits.reserve(ANN, 1, 31.0)


def test_a_refused_request_takes_nothing() -> None:
    limits = RateLimits(Limits({"key": 10}, {"key": 100}), 0.0)
    limits.reserve(ANN, 100, 0.0)
    refused = refusal(limits, ANN, 1, 0.0)
    assert refused.headers["x-ratelimit-remaining-requests"] == "9"


def test_keys_of_a_tenant_share_its_allowance() -> None:
    limits = RateLimits(Limits({"tenant": 2, "key": 2}, {}), 0.0)
    limits.reserve(ANN, 1, 0.0)
    limits.reserve(BOB, 1, 0.0)
    assert "tenant acme" in str(refusal(limits, BOB, 1, 0.0))


@pytest.mark.parametrize(
    ("requests", "allowed"),
    [
        ({"key": 1}, 1),
        ({"key": 1, "tier:premium": 2}, 2),
        ({"key": 1, "tier:premium": 2, f"key:{BOB.key_id}": 3}, 3),
        ({"tenant": 1, "tenant:acme": 4}, 4),
        ({"tier:batch": 1, "tenant:other": 1}, None),
    ],
)
def test_the_most_particular_limit_counts(requests: dict[str, int], allowed: int | None) -> None:
    header = RateLimits(Limits(requests, {}), 0.0).reserve(BOB, 1, 0.0).get("x-ratelimit-limit-requests")
    assert header == (None if allowed is None else str(allowed))


@pytest.mark.parametrize("name", ["keys", "tier", "tier:gold", "user:x", "key:", ""])
def test_names_that_mean_nothing_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="tokens_per_minute names"):
        RateLimits(Limits({}, {name: 5}), 0.0)


def test_an_allowance_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="allowed: 1 or more"):
        RateLimits(Limits({"key": 0}, {}), 0.0)


def test_full_buckets_are_forgotten() -> None:
    buckets = LocalBuckets(0.0)
    full, empty = (buckets.bucket("requests", owner, 60, 0.0) for owner in ("key:a", "key:b"))
    empty.take(600, 0.0)
    assert buckets.bucket("requests", "key:b", 60, 100.0) is empty
    assert buckets.bucket("requests", "key:a", 60, 100.0) is not full


steps = st.lists(st.tuples(st.floats(0, 30), st.integers(1, 200), st.integers(0, 200)), max_size=50)


@given(st.integers(1, 300), steps)
def test_over_time_no_more_is_used_than_allowed(per_minute: int, asked: list[tuple[float, int, int]]) -> None:
    """What was used never exceeds a full bucket, the time's share, and the last request's own size."""
    bucket, now, used = TokenBucket(per_minute, per_minute, 0.0), 0.0, 0.0
    for seconds, reserve, answer in asked:
        now += seconds
        if bucket.wait_s(reserve, now) == 0:
            bucket.take(reserve, now)
            bucket.give(reserve - answer, now)
            used += answer
        assert used <= per_minute + now * per_minute / 60 + 200 + 1e-6
        assert bucket.level(now) <= per_minute
