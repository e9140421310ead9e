"""Requests go where their prefix is, and replicas simulated with that find more of it."""

from collections import Counter
from dataclasses import replace

from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.core.requests import GenerateRequest
from prolepsis.engine.drafting.cost import flat_cost
from prolepsis.remote.prefixes import LOAD_FACTOR, PREFIX_PAGES, PrefixRouter, ReplicaRouter, page_hashes
from tests.fakes import request
from tests.simulation.replicas import Door, Machine, Outcome, RoundRobin, simulate
from tests.simulation.shared_prefixes import Conversations

IDLE = dict.fromkeys("abcde", 0)
NEW = PrefixRouter()
"""Has sent nothing."""


def prompt(*tokens: int) -> GenerateRequest:
    return request("r", tokens)


def prompts(number: int) -> list[GenerateRequest]:
    """Return prompts that share nothing."""
    return [replace(prompt(1), cache_salt=str(i)) for i in range(number)]


def first(router: PrefixRouter, source: GenerateRequest, loads: dict[str, int] = IDLE) -> str:
    return router.ranked(source, loads)[0]


def test_whole_pages_before_the_last_token_have_hashes() -> None:
    page = tuple(range(PAGE_SIZE))
    assert page_hashes(prompt(*page, 1, 2)) == page_hashes(prompt(*page, 3))
    assert page_hashes(prompt(*page, 1)) != page_hashes(prompt(9, *page[1:], 1))
    assert not page_hashes(prompt(*page)), "the last token is computed: no page is whole before it"
    assert page_hashes(replace(prompt(*page, 1), cache_salt="acme")) != page_hashes(prompt(*page, 1)), (
        "scopes share none"
    )


def test_a_prefix_goes_to_the_replica_that_holds_the_most_of_it() -> None:
    router, turn = PrefixRouter(), tuple(range(3 * PAGE_SIZE))
    other = {**IDLE, first(router, prompt(*turn, 1)): 9}
    moved = first(router, prompt(*turn, 1), other)
    router.sent(prompt(*turn, 1), moved)
    assert first(router, prompt(*turn, *turn, 1)) == moved, "where the turn before was computed, not where it hashes to"
    longer = next(name for name in IDLE if name != moved)
    router.sent(prompt(*turn, *turn, 1), longer)
    assert list(router.ranked(prompt(*turn, *turn, *turn, 1), IDLE))[:2] == [longer, moved]
    assert first(router, replace(prompt(*turn, *turn, 1), cache_salt="acme")) == first(
        NEW, replace(prompt(*turn, *turn, 1), cache_salt="acme")
    ), "what one scope is sent tells nothing about another"


def test_a_router_forgets_the_pages_that_it_sent_longest_ago() -> None:
    page = tuple(range(PAGE_SIZE))
    old, new = prompt(*page, 1), prompt(*page[::-1], 1)
    holder = next(name for name in IDLE if name != first(NEW, old))
    router = PrefixRouter(held_pages=1)
    router.sent(old, holder)
    assert first(router, old) == holder
    router.sent(new, holder)
    assert first(router, old) == first(NEW, old)


def test_a_replica_that_is_gone_is_not_chosen() -> None:
    router, source = PrefixRouter(), prompt(*range(PAGE_SIZE), 1)
    router.sent(source, "gone")
    assert first(router, source) == first(NEW, source)


def test_new_prompts_go_by_their_first_pages() -> None:
    shared = tuple(range(PREFIX_PAGES * PAGE_SIZE))
    assert NEW.ranked(prompt(*shared, *[1] * 100), IDLE) == NEW.ranked(prompt(*shared, *[2] * 100), IDLE)


def test_prompts_spread_over_replicas() -> None:
    counts = Counter(first(NEW, one) for one in prompts(2000))
    assert set(counts) == set(IDLE)
    assert max(counts.values()) < 1.3 * 400


def test_a_replica_that_goes_moves_its_own_prefixes_only() -> None:
    left = {name: 0 for name in IDLE if name != "c"}
    for one in prompts(500):
        before = NEW.ranked(one, IDLE)
        after = NEW.ranked(one, left)
        assert after[0] == (before[1] if before[0] == "c" else before[0])


def test_a_replica_above_the_bound_is_passed_over() -> None:
    for seed in range(50):
        router, source = PrefixRouter(), prompt(*range(seed, seed + PAGE_SIZE), 1)
        best, second, *_ = router.ranked(source, IDLE)
        router.sent(source, best)
        assert first(router, source, {**IDLE, best: 3}) == second
        busy = dict.fromkeys(IDLE, 10)
        assert first(router, source, {**busy, best: 11}) == best, "a little more than the others is within the bound"


def test_a_prompt_of_which_little_is_held_goes_where_least_is_to_do() -> None:
    system = tuple(range(PAGE_SIZE))
    router, short, long = PrefixRouter(), prompt(*system, 1), prompt(*system, *[7] * 4 * PAGE_SIZE, 1)
    router.sent(short, "a")
    loads = {**dict.fromkeys("abcde", 10), "d": 9}
    assert first(router, short, loads) == "a"
    assert first(router, long, loads) == "d", "a fifth of it is not worth a longer queue"


def test_one_prefix_alone_fills_no_replica_beyond_the_bound() -> None:
    router, source = PrefixRouter(), prompt(*range(PAGE_SIZE), 1)
    loads = dict(IDLE)
    for i in range(1, 101):
        chosen = first(router, source, loads)
        router.sent(source, chosen)
        loads[chosen] += 1
        assert max(loads.values()) <= LOAD_FACTOR * i / len(loads) + 1


def test_without_replicas_there_is_no_choice() -> None:
    assert list(NEW.ranked(prompt(1), {})) == []


MACHINE = Machine(flat_cost(5.0, 0.2), num_pages=1024)
CALLS = Conversations(tenants=16, per_tenant=4, turns=(4, 8), system=(64, 128), answer=16).calls(seed=1, pause_s=0.05)


def outcome(*routers: ReplicaRouter, num_replicas: int = 8, times: Door | None = None) -> Outcome:
    found = simulate(CALLS, MACHINE, num_replicas, routers, times)
    assert [job.num_emitted for job in found.jobs] == [16] * len(CALLS)
    return found


def test_twice_as_much_of_prompts_is_cached_as_in_turns() -> None:
    turns, prefixes = outcome(RoundRobin()), outcome(PrefixRouter())
    assert prefixes.hit_rate > 2 * turns.hit_rate
    assert prefixes.imbalance < 1.5
    assert sum(replica.busy_s for replica in prefixes.replicas) < sum(replica.busy_s for replica in turns.replicas)


def test_front_ends_that_know_only_what_they_sent_find_most_of_it() -> None:
    two = outcome(PrefixRouter(), PrefixRouter())
    assert two.hit_rate > 1.2 * outcome(RoundRobin()).hit_rate
    assert two.hit_rate <= outcome(PrefixRouter()).hit_rate


def test_cached_tokens_are_whole_pages_and_pools_are_whole_at_the_end() -> None:
    found = outcome(PrefixRouter(), num_replicas=1)
    assert all(job.num_cached % PAGE_SIZE == 0 and job.num_cached < job.num_prompt for job in found.jobs)
    for replica in found.replicas:
        replica.pool.check(holders=[])


def test_a_front_door_takes_its_time() -> None:
    free, busy = outcome(PrefixRouter()), outcome(PrefixRouter(), times=Door(request_ms=5.0, chunk_ms=0.1))
    assert busy.ttft_s[0] > free.ttft_s[0] + 0.005
    assert 0 < busy.door_busy < 1
