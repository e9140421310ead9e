"""Rollouts that stick to a key count by it: each key is one observation, on one replica, once for a stage."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from prolepsis.control.rollout.live import targets_of
from prolepsis.control.rollout.machine import RolloutState
from prolepsis.control.rollout.runtime import Rollouts
from prolepsis.control.rollout.store import RolloutStore
from prolepsis.control.rollout.units import MAX_COUNTED, MAX_OPEN, WINDOW_S, UnitKey, Units, unit_of
from prolepsis.control.statistics.guardrail import Guardrail
from prolepsis.control.statistics.judge import StageEvidence, outcome_of
from prolepsis.control.statistics.means import MeanDifference
from prolepsis.control.store.migrate import migrated_in_memory
from prolepsis.core.ended import Assignment
from prolepsis.core.errors import StoreUnavailable
from prolepsis.core.facts import RequestFacts
from tests.control.policy.policies import policy
from tests.control.rollout.rollout import memory_store

CANARY = Assignment("r@1", 1, 0, "canary", "on", 0.5, "aa")
RULE = """
    rules:
      - name: code
        match: {{}}
        mode: on
        rollout: {{stages: [50], holdout: 10, gate: automatic, min_samples: 5, min_stage_s: 0, assign_by: {0}}}
        guardrails: [{{name: errors, metric: error_rate, limit: 0.2}}]
"""


def keys_of(units: Units, now: float) -> list[UnitKey]:
    return [key for keys in units.due(now).values() for key in keys]


def test_a_unit_is_the_mean_of_its_requests_in_one_minute_and_counts_once() -> None:
    units = Units()
    units.add(CANARY, {"error": 1.0, "latency_ms": 10.0}, 100.0, late=False)
    units.add(CANARY, {"error": 0.0}, 130.0, late=False)
    units.add(replace(CANARY, unit="bb"), {}, 130.0, late=False)
    assert keys_of(units, 100.0 + WINDOW_S - 1.0) == []
    [key] = keys_of(units, 100.0 + WINDOW_S)
    [(_, values)] = units.take([key], 160.0)
    assert values.means == {"error": 0.5, "latency_ms": 10.0}
    units.add(CANARY, {"error": 1.0}, 1000.0, late=False)
    assert [key.unit for key in keys_of(units, 5000.0)] == ["bb"], "the first one is counted"
    units.add(CANARY, {"correctness": 1.0}, 5000.0, late=True)
    assert ("aa", True) in [(key.unit, key.late) for key in keys_of(units, 6000.0)]
    units.add(CANARY, {"error": 1.0}, 6000.0, late=False, again_s=5000.0)
    assert ("aa", False) in [(key.unit, key.late) for key in keys_of(units, 7000.0)]
    units.add(replace(CANARY, stage=1), {"error": 1.0}, 6000.0, late=False)
    assert {key.stage for key in keys_of(units, 7000.0)} == {0, 1}, "each stage counts by itself"


def test_the_memory_of_counted_units_is_bounded() -> None:
    units = Units()
    for numbers in (range(MAX_COUNTED), (MAX_COUNTED,)):
        for i in numbers:
            units.add(replace(CANARY, unit=str(i)), {}, 0.0, late=False)
        units.take(keys_of(units, WINDOW_S), WINDOW_S)
    units.add(replace(CANARY, unit="0"), {}, 100.0, late=False)
    units.add(replace(CANARY, unit="1"), {}, 100.0, late=False)
    assert [key.unit for key in keys_of(units, 200.0)] == ["0"], "the oldest was forgotten"


def test_units_that_wait_for_a_store_are_bounded_and_those_beyond_are_counted() -> None:
    units = Units()
    for i in range(MAX_OPEN):
        units.add(replace(CANARY, unit=str(i)), {}, 0.0, late=False)
    units.add(replace(CANARY, unit="one more"), {}, 0.0, late=False)
    units.add(replace(CANARY, unit="0"), {"error": 1.0}, 1.0, late=False)
    assert len(keys_of(units, WINDOW_S)) == MAX_OPEN
    assert units.num_lost == 1, "a unit that waits already takes in more"
    units.take(keys_of(units, WINDOW_S), WINDOW_S)
    units.add(replace(CANARY, unit="one more"), {}, 100.0, late=False)
    assert len(keys_of(units, 200.0)) == 1, "there is room again"


def test_replicas_count_a_unit_once_between_them() -> None:
    database = migrated_in_memory()
    first, second = RolloutStore(database), RolloutStore(database)
    a, b = (UnitKey("r@1", 1, 0, unit, late=False) for unit in ("aa", "bb"))
    assert first.claim([a], -float("inf"), 10.0) == {a}
    assert second.claim([a, b], -float("inf"), 20.0) == {b}
    assert second.claim([a, b, a._replace(late=True)], -float("inf"), 30.0) == {a._replace(late=True)}
    assert first.claim([a._replace(stage=1)], -float("inf"), 30.0)
    assert second.claim([a, b], 15.0, 40.0) == {a}, "in a moving window it counts again"
    state = RolloutState("r@1", "p", version=1, run=1, phase="running")
    assert first.swap(state, ())
    assert first.swap(replace(state, version=2, phase="rolled_back"), ())
    assert second.claim([b], -float("inf"), 50.0) == {b}, "the stage is over"


class Sticky:
    def __init__(self, assign_by: str = "tenant", store: RolloutStore | None = None) -> None:
        self.now = 1000.0
        self.policy = policy(RULE.format(assign_by))
        store = store or memory_store()
        self.version = ""
        self.rollouts = Rollouts(
            store,
            lambda run: None,
            CollectorRegistry(),
            model="tiny",
            weights_of=lambda proposer: self.version,
            clock=lambda: self.now,
        )
        self.rollouts.adopt(self.policy)

    def assign(self, number: int, **facts: object) -> Assignment:
        terms = self.policy.rules[0].terms.rollout
        assert terms is not None
        given = RequestFacts(targeting_key=f"request-{number}", **facts)  # type: ignore[arg-type]
        return self.rollouts.assign("code", f"request-{number}", terms.sticky_key(given))

    async def tick(self, seconds: float) -> None:
        self.now += seconds
        await self.rollouts.tick()


@pytest.mark.parametrize(
    ("assign_by", "fact", "value"),
    [
        ("tenant", "tenant", "acme"),
        ("key", "key", "0123"),
        ("{header: x-conversation-id}", "headers", {"x-conversation-id": "c1"}),
    ],
)
async def test_all_requests_with_a_key_have_one_arm(assign_by: str, fact: str, value: object) -> None:
    sticky = Sticky(assign_by)
    await sticky.tick(0.0)  # its gate is automatic
    assert len({(one.arm, one.unit) for one in (sticky.assign(i, **{fact: value}) for i in range(50))}) == 1
    alone = [sticky.assign(i) for i in range(50)]
    assert {one.unit for one in alone} == {""}
    assert len({one.arm for one in alone}) > 1, "requests without the key are assigned one by one"


def test_a_conversation_belongs_to_its_tenant() -> None:
    terms = policy(RULE.format("{header: x-c}")).rules[0].terms.rollout
    assert terms is not None
    keys = {terms.sticky_key(RequestFacts(tenant=tenant, headers={"x-c": "1"})) for tenant in ("a", "b")}
    assert len(keys) == 2


async def test_judgements_count_keys(tmp_path: Path) -> None:
    sticky = Sticky()
    await sticky.tick(0.0)
    for i in range(600):
        tenant = f"t{i % 6}"
        sticky.rollouts.observe(sticky.assign(i, tenant=tenant), {"error": float(tenant == "t1")})
    await sticky.tick(1.0)
    [view] = await sticky.rollouts.views()
    assert (view.unit, view.num_canary + view.num_control) == ("tenant", 0), "their minute is not over"
    await sticky.tick(WINDOW_S)
    [view] = await sticky.rollouts.views()
    assert view.num_canary + view.num_control == 6
    assert view.phase == "running", "one tenant of six that fails always is no judgement; 100 of 600 requests would be"
    for i in range(600):
        sticky.rollouts.observe(sticky.assign(i, tenant=f"t{i % 6}"), {"error": 1.0})
    await sticky.tick(2 * WINDOW_S)
    [view] = await sticky.rollouts.views()
    assert view.num_canary + view.num_control == 6


async def test_keys_count_again_with_another_head() -> None:
    sticky = Sticky()
    sticky.version = "head@1"
    await sticky.tick(0.0)
    for version in ("head@1", "head@2"):
        sticky.version = version
        for i in range(6):
            sticky.rollouts.observe(sticky.assign(i, tenant=f"t{i}"), {"error": 0.0})
        await sticky.tick(WINDOW_S)
        [view] = await sticky.rollouts.views()
        assert (view.weights, view.num_canary + view.num_control) == (version, 6)


class Unavailable(RolloutStore):
    away = True

    def __init__(self) -> None:
        super().__init__(migrated_in_memory())

    def claim(self, keys: object, again_before: float, now: float) -> frozenset[UnitKey]:
        if self.away:
            raise StoreUnavailable("away")
        return super().claim(keys, again_before, now)  # type: ignore[arg-type]


async def test_units_wait_for_a_store_that_is_away() -> None:
    store = Unavailable()
    sticky = Sticky(store=store)
    await sticky.tick(0.0)
    sticky.rollouts.observe(sticky.assign(1, tenant="acme"), {"error": 0.0})
    await sticky.tick(2 * WINDOW_S)
    store.away = False
    await sticky.tick(1.0)
    [view] = await sticky.rollouts.views()
    assert view.num_canary + view.num_control == 1


def test_the_key_is_part_of_a_rollouts_identity_only_where_it_is_given() -> None:
    text = "default: {{mode: on, rollout: {{{0}}}}}"
    plain, stated, sticky = (
        targets_of(policy(text.format(given)), "tiny")["default"].rollout_id
        for given in ("", "assign_by: request", "assign_by: tenant")
    )
    assert plain == stated != sticky


ERRORS = Guardrail(name="errors", metric="error", measure=MeanDifference(margin=0.02), minimum_samples=20)


def arms(seed: int, num_tenants: int, num_requests: int) -> Iterator[tuple[str, str, float]]:
    """Yield (tenant, arm, error) of requests of tenants that differ: a tenth of them fail in 40 %, for any arm."""
    draw = random.Random(seed)
    rates = {f"t{i}": 0.4 if draw.random() < 0.1 else 0.01 for i in range(num_tenants)}
    dealt = {tenant: draw.choice(("canary", "control")) for tenant in rates}
    for _ in range(num_requests):
        tenant = draw.choice(list(rates))
        yield tenant, dealt[tenant], float(draw.random() < rates[tenant])


def false_rollbacks(*, by_tenant: bool, number: int = 60) -> int:
    """Return how many of so many harmless rollouts that stick to a tenant are rolled back."""
    failed = 0
    for seed in range(number):
        evidence, sums = StageEvidence("r", 0), dict[str, tuple[str, list[float]]]()
        for i, (tenant, arm, error) in enumerate(arms(seed, 60, 3000)):
            sums.setdefault(tenant, (arm, []))[1].append(error)
            if not by_tenant:
                evidence = evidence.observe([ERRORS], arm, {"error": error})  # type: ignore[arg-type]
            if i % 250 == 249 and outcome_of([ERRORS], evidence, share=0.5)[0] == "fail":
                break
        if by_tenant:
            for arm, errors in sums.values():
                evidence = evidence.observe([ERRORS], arm, {"error": sum(errors) / len(errors)})  # type: ignore[arg-type]
        failed += outcome_of([ERRORS], evidence, share=0.5)[0] == "fail"
    return failed


def test_tenants_that_differ_do_not_roll_a_harmless_canary_back() -> None:
    assert false_rollbacks(by_tenant=True) <= 3, "5 % of 60"
    assert false_rollbacks(by_tenant=False) > 6, "counted one by one, tenants look like harm"


def test_a_units_name_tells_nothing_of_its_key() -> None:
    assert unit_of("acme") != unit_of("acme2")
    assert len(unit_of("a" * 1000)) == 16
