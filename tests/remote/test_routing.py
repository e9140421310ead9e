"""Simulated replicas: what the router finds in their caches, and how it spreads the load."""

from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.engine.drafting.cost import flat_cost
from prolepsis.remote.prefixes import PrefixRouter, ReplicaRouter
from tests.simulation.replicas import Door, Machine, Outcome, RoundRobin, simulate
from tests.simulation.shared_prefixes import Conversations

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
