"""Breakers over several tenants: none takes a proposer from the others, and a damaged one is out as soon as ever."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from prolepsis.control.health.breaker import Breaker, BreakerEvent, Breakers, BreakerSettings
from prolepsis.core.plan import DisabledProposer, SpecPlan
from prolepsis.engine.drafting.draft import chain
from prolepsis.engine.drafting.effort import MarginalCost
from prolepsis.engine.drafting.ledger import MOST_TENANTS, DisabledProposers, Ledger

SETTINGS = BreakerSettings()
KEY = ("head", "chat")
DRAFT = chain((1,), "head")


@dataclass(frozen=True, slots=True)
class Drafts:
    """Drafts of a tenant in a step. `cost`: of each, in tokens."""

    number: int
    acceptance: float
    cost: float = 0.1


GOOD, USELESS = Drafts(1, 0.7), Drafts(60, 0.0)


@dataclass
class Server:
    """A ledger, its breakers and the plan that follows from them."""

    ledger: Ledger = field(default_factory=lambda: Ledger(["head"]))
    breakers: Breakers = field(default_factory=lambda: Breakers(SETTINGS))
    now: float = 100.0
    events: list[BreakerEvent] = field(default_factory=list)
    tells_apart: bool = True
    """The counts say whose drafts they are."""
    rng: Random = field(default_factory=lambda: Random(7))

    def __post_init__(self) -> None:
        self._out = DisabledProposers(self.ledger)

    @property
    def breaker(self) -> Breaker:
        return self.breakers.all[KEY]

    def may_draft(self, tenant: str) -> bool:
        plan = SpecPlan(disabled=self.breakers.disabled())
        return bool(self._out.allowed(("chat", tenant), ("head",), plan))

    def draft(self, tenant: str, drafts: Drafts) -> None:
        origin = ("chat", tenant)
        for _ in range(drafts.number):
            if self.may_draft(tenant):
                right = self.rng.random() < drafts.acceptance
                self.ledger.ask("head", [origin], 0.0, None)
                self.ledger.judge("head", origin, right=right)
                self.ledger.verify(DRAFT, [0] if right else [], origin, MarginalCost(token=drafts.cost, ms=0.0))

    def look(self, seconds: float = 0.0) -> list[BreakerEvent]:
        self.now += seconds
        counts = self.ledger.counts()
        read = counts if self.tells_apart else [replace(one, tenants=()) for one in counts]
        events = list(self.breakers.observe(read, self.now))
        self.events += events
        return events

    def run(self, steps: int, tenants: Mapping[str, Drafts]) -> None:
        """Let all tenants draft in each step of 0.02 s, and look every ten steps."""
        for step in range(steps):
            for tenant, drafts in tenants.items():
                self.draft(tenant, drafts)
            if step % 10 == 9:
                self.look(0.2)

    def until_open(self, tenants: list[str]) -> int:
        """Draft uselessly for one tenant after another; return how many drafts it took."""
        for number in range(1, 1000):
            self.draft(tenants[number % len(tenants)], Drafts(1, 0.0, cost=0.01))
            if self.look():
                return number
        raise AssertionError("a breaker opens")


ALONE = Server(tells_apart=False).until_open(["one"])
"""Drafts until a breaker that knows of no tenants opens."""


@pytest.mark.parametrize("num_tenants", [1, 2, 3, 20])
def test_a_damaged_proposer_is_out_as_soon_with_many_tenants_as_with_one(num_tenants: int) -> None:
    server, tenants = Server(), [f"tenant-{i}" for i in range(num_tenants)]
    assert server.until_open(tenants) == ALONE
    assert (server.breaker.state, server.breaker.reason) == ("open", "acceptance")
    assert not any(map(server.may_draft, tenants))
    is_few = num_tenants < SETTINGS.least_blamed
    assert server.may_draft("new") == is_few, "what a few tenants' drafts were like says nothing of others'"
    expected = frozenset(tenants) if is_few else frozenset[str]()
    assert server.breakers.disabled() == (DisabledProposer(*KEY, compared=True, tenants=expected),)


@pytest.mark.parametrize("useless", [USELESS, Drafts(60, 0.3, cost=2.0)], ids=["wrong", "costly"])
def test_a_flood_of_one_tenants_useless_drafts_takes_the_proposer_from_no_other(useless: Drafts) -> None:
    server = Server()
    server.run(2000, {"flood": useless, "bank": GOOD, "shop": GOOD})
    assert {event.tenants for event in server.events if event.after == "open"} == {("flood",)}
    assert server.breaker.state in ("open", "half_open")
    assert server.may_draft("bank")
    assert server.may_draft("new")


@pytest.mark.parametrize("useless", [USELESS, Drafts(60, 0.3, cost=2.0)], ids=["wrong", "costly"])
@pytest.mark.parametrize(("num_floods", "num_good", "good"), [(2, 1, GOOD), (2, 1, Drafts(20, 0.7)), (3, 4, GOOD)])
def test_floods_of_a_few_tenants_take_the_proposer_from_no_other(
    num_floods: int, num_good: int, useless: Drafts, good: Drafts
) -> None:
    server, floods = Server(), {f"flood-{i}": useless for i in range(num_floods)}
    banks = {f"bank-{i}": good for i in range(num_good)}
    server.run(600, floods | banks)
    assert {tenant for event in server.events for tenant in event.tenants} <= floods.keys()
    assert {event.after for event in server.events if not event.tenants} <= {"closed"}, "never open for all"
    assert [server.may_draft(one) for one in (*banks, "new")] == [True] * (num_good + 1)


def test_where_most_tenants_drafts_are_bad_it_opens_for_all() -> None:
    server = Server()
    server.until_open(["bank", "shop"])
    assert server.breaker.tenants == {"bank", "shop"}
    server.until_open(["school"])
    assert server.events[-1].tenants == ()
    assert not server.may_draft("new")


def test_a_tenant_that_comes_after_the_flood_finds_the_proposer() -> None:
    server = Server()
    server.run(2000, {"flood": USELESS})
    assert not server.may_draft("flood")
    judged = server.ledger.counts()[0].num_judged
    server.run(100, {"flood": USELESS, "bank": GOOD})
    assert server.ledger.counts()[0].num_judged >= judged + 100
    assert server.may_draft("bank")


def test_a_proposer_that_is_out_for_one_tenant_and_damaged_opens_for_the_others_too() -> None:
    server = Server()
    server.run(10, {"flood": USELESS})
    assert server.until_open(["bank", "shop"]) == ALONE
    assert server.events[-1].tenants == ()
    assert (server.events[-1].before, server.events[-1].after) == ("closed", "open"), "for them it was closed"
    assert not server.may_draft("bank")


def test_a_second_tenant_with_useless_drafts_joins_the_first_alone() -> None:
    server = Server()
    server.run(10, {"flood": USELESS})
    server.run(10, {"flood": USELESS, "more": USELESS, "bank": GOOD})
    assert server.events[-1].tenants == ("flood", "more")
    assert [server.may_draft(one) for one in ("flood", "more", "bank")] == [False, False, True]


def half_open() -> Server:
    server = Server()
    server.run(10, {"flood": USELESS})
    [event] = server.look(SETTINGS.open_s)
    assert (event.after, event.tenants) == ("half_open", ("flood",))
    return server


def test_a_half_open_round_of_one_tenant_is_decided_by_its_own_drafts() -> None:
    server = half_open()
    server.run(50, {"bank": Drafts(10, 0.9)})
    assert server.breaker.state == "half_open", "drafts of others neither close it nor use its probes"
    server.run(10, {"bank": Drafts(10, 0.9), "flood": Drafts(5, 0.0)})
    assert (server.breaker.state, server.breaker.open_s) == ("open", 2.0 * SETTINGS.open_s)
    server.look(2.0 * SETTINGS.open_s)
    server.run(10, {"flood": Drafts(5, 0.9)})
    assert (server.breaker.state, server.breaker.tenants) == ("closed", frozenset())


def test_a_half_open_round_of_all_that_one_tenant_uses_up_lets_in_the_others() -> None:
    server = Server()
    server.until_open(["flood", "bank", "shop"])
    server.look(SETTINGS.open_s)
    server.run(10, {"flood": USELESS, "bank": GOOD})
    assert server.breaker.tenants == {"flood"}
    assert server.may_draft("bank")


def test_a_half_open_round_of_all_fails_for_all_if_drafts_of_several_are_bad() -> None:
    server = Server()
    server.until_open(["bank", "shop", "school"])
    server.look(SETTINGS.open_s)
    assert server.until_open(["bank", "shop", "school"]) == SETTINGS.min_probed
    assert (server.breaker.state, server.breaker.tenants) == ("open", frozenset())


def test_faults_open_it_for_all_whoever_met_them() -> None:
    server = Server()
    server.draft("bank", GOOD)
    for _ in range(SETTINGS.errors_in_row):
        server.ledger.fail(*KEY)
    server.look()
    assert not server.may_draft("shop")
    server = half_open()
    for _ in range(SETTINGS.errors_in_row):
        server.ledger.fail(*KEY)
    server.look()
    assert not server.may_draft("shop"), "also while it is out for one tenant"


def test_few_tenants_are_told_apart_and_a_flood_is_among_them() -> None:
    server = Server()
    for i in range(3000):
        server.draft("flood", Drafts(1, 0.0))
        server.draft(f"tenant-{i}", Drafts(1, 0.0))
    [counts] = server.ledger.counts()
    parts = {part.tenant: part.num_judged for part in counts.tenants}
    assert len(parts) == MOST_TENANTS
    assert parts["flood"] == 3000
    assert counts.num_judged == 6000
