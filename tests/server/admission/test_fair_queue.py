from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from prolepsis.server.admission.fair_queue import FairQueue, Waiting
from prolepsis.server.admission.load_shedding import TIERS


def waiting(tenant: str, cost: int = 10, *, tier: str = "standard", priority: int = 0, since: float = 0.0) -> Waiting:
    return Waiting(tenant, tier, priority, cost, 1, since)


def take(queue: FairQueue, number: int, holds: Callable[[str, str], bool] = lambda *_: False) -> list[Waiting]:
    taken = []
    for _ in range(number):
        head = queue.peek(holds)
        assert head is not None
        queue.start(head)
        taken.append(head)
    return taken


def test_one_tenant_is_served_by_priority_then_arrival() -> None:
    queue = FairQueue()
    sent = [waiting("a", priority=p) for p in (1, 0, 1, -5)]
    for request in sent:
        queue.push(request)
    assert take(queue, 4) == [sent[3], sent[1], sent[0], sent[2]]
    assert len(queue) == 0
    assert queue.peek() is None


def test_a_flood_of_one_tenant_delays_another_by_one_request() -> None:
    queue = FairQueue()
    for _ in range(100):
        queue.push(waiting("flood"))
    take(queue, 3)
    queue.push(waiting("late"))
    assert "late" in [request.tenant for request in take(queue, 2)]


def test_priority_overtakes_only_requests_of_the_same_flow() -> None:
    queue = FairQueue()
    queue.push(waiting("a"))
    for _ in range(4):
        queue.push(waiting("pushy", priority=-1000))
    assert "a" in [request.tenant for request in take(queue, 2)]


def test_a_tenant_that_was_idle_claims_nothing_of_the_past() -> None:
    queue = FairQueue()
    for _ in range(60):
        queue.push(waiting("busy"))
    take(queue, 40)
    for _ in range(20):
        queue.push(waiting("new"))
    tenants = [request.tenant for request in take(queue, 20)]
    assert 9 <= tenants.count("new") <= 11


def test_held_tiers_stay_and_claim_nothing_later() -> None:
    queue = FairQueue()
    for _ in range(30):
        queue.push(waiting("b", tier="batch", since=1.0))
        queue.push(waiting("s", tier="standard", since=2.0))
    assert {request.tier for request in take(queue, 15, lambda _, tier: tier == "batch")} == {"standard"}
    assert queue.oldest() == 1.0
    assert queue.oldest({"batch"}) == 2.0
    assert queue.oldest_of_tenants() == {"b": 1.0, "s": 2.0}
    tiers = [request.tier for request in take(queue, 15)]
    assert 4 <= tiers.count("batch") <= 6  # weight 1 against 2


def test_unused_reservations_are_refunded() -> None:
    queue = FairQueue()
    for _ in range(40):
        queue.push(waiting("short", cost=100))
        queue.push(waiting("long", cost=100))
    served = {"short": 0, "long": 0}
    for _ in range(22):
        [request] = take(queue, 1)
        served[request.tenant] += 1
        if request.tenant == "short":
            queue.correct(request, 90)
    assert served["short"] >= 5 * served["long"]


def test_numbers_waiting() -> None:
    queue = FairQueue()
    sent = [waiting("a"), waiting("a", tier="batch"), waiting("b")]
    for request in sent:
        queue.push(request)
    assert (queue.num_of_tenant("a"), queue.num_of_tenant("b"), queue.num_of_tenant("c")) == (2, 1, 0)
    assert (queue.num_of_tier("standard"), queue.num_of_tier("batch")) == (2, 1)
    queue.drop(sent[0])
    assert (len(queue), queue.num_of_tenant("a")) == (2, 1)


def test_idle_flows_are_forgotten() -> None:
    queue = FairQueue()
    for i in range(50):
        queue.push(waiting(str(i)))
    take(queue, 50)
    queue.push(waiting("last", cost=1000))
    queue.push(waiting("last", cost=1000))
    queue.push(waiting("last", cost=1000))
    take(queue, 3)
    assert len(queue._flows) <= 1


costs = st.lists(st.integers(1, 100), min_size=30, max_size=30)


@given(costs, costs, st.sampled_from(sorted(TIERS)), st.sampled_from(sorted(TIERS)))
def test_two_busy_flows_get_their_weights(a: list[int], b: list[int], tier_a: str, tier_b: str) -> None:
    """While both wait, what each got over its weight differs by at most one request of each."""
    queue = FairQueue()
    for cost_a, cost_b in zip(a, b, strict=True):
        queue.push(waiting("a", cost_a, tier=tier_a))
        queue.push(waiting("b", cost_b, tier=tier_b))
    weights = {"a": TIERS[tier_a].weight, "b": TIERS[tier_b].weight}
    got = {"a": 0.0, "b": 0.0}
    while queue.num_of_tenant("a") and queue.num_of_tenant("b"):
        [request] = take(queue, 1)
        got[request.tenant] += request.cost / weights[request.tenant]
        assert abs(got["a"] - got["b"]) <= 100 / weights["a"] + 100 / weights["b"]
