"""Prefixes stay with their replica, replicas come and go, and none is overloaded."""

from collections import Counter
from dataclasses import replace

from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.core.requests import GenerateRequest
from prolepsis.ray.affinity import LOAD_FACTOR, PREFIX_PAGES, prefix_key, ranked
from tests.fakes import request

IDLE = dict.fromkeys("abcde", 0)


def prompt(*tokens: int) -> GenerateRequest:
    return request("r", tokens)


def keys(number: int) -> list[bytes]:
    return [prefix_key(replace(prompt(1), cache_salt=str(i))) for i in range(number)]


def test_requests_with_the_same_pages_have_the_same_key() -> None:
    page = tuple(range(PAGE_SIZE))
    assert prefix_key(prompt(*page, 1, 2)) == prefix_key(prompt(*page, 3))
    assert prefix_key(prompt(*page, 1)) != prefix_key(prompt(9, *page[1:], 1))
    assert prefix_key(prompt(*page)) == prefix_key(prompt(7)), "the last token is computed: no page is whole before it"
    assert prefix_key(replace(prompt(*page, 1), cache_salt="acme")) != prefix_key(prompt(*page, 1)), "scopes share none"


def test_only_the_first_pages_count() -> None:
    first = tuple(range(PREFIX_PAGES * PAGE_SIZE))
    assert prefix_key(prompt(*first, *[1] * 100)) == prefix_key(prompt(*first, *[2] * 100))


def test_keys_spread_over_replicas() -> None:
    counts = Counter(ranked(key, IDLE)[0] for key in keys(2000))
    assert set(counts) == set(IDLE)
    assert max(counts.values()) < 1.3 * 400


def test_a_replica_that_goes_moves_its_own_keys_only() -> None:
    left = {name: 0 for name in IDLE if name != "c"}
    for key in keys(500):
        before = ranked(key, IDLE)
        after = ranked(key, left)
        assert after[0] == (before[1] if before[0] == "c" else before[0])


def test_a_replica_above_the_bound_is_passed_over() -> None:
    for key in keys(50):
        first, second, *_ = ranked(key, IDLE)
        assert ranked(key, {**IDLE, first: 3})[0] == second
        busy = dict.fromkeys(IDLE, 10)
        assert ranked(key, {**busy, first: 11})[0] == first, "a little more than the others is within the bound"


def test_one_key_alone_fills_no_replica_beyond_the_bound() -> None:
    [key] = keys(1)
    loads = dict(IDLE)
    for i in range(1, 101):
        loads[ranked(key, loads)[0]] += 1
        assert max(loads.values()) <= LOAD_FACTOR * i / len(loads) + 1


def test_without_replicas_there_is_no_choice() -> None:
    assert list(ranked(b"key", {})) == []
