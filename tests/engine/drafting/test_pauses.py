from collections.abc import Sequence

import pytest

from prolepsis.engine.drafting.explore import Explore
from prolepsis.engine.drafting.pauses import Pauses


class _Engine(Pauses):
    """With a budget that its steps fill."""

    def __init__(self) -> None:
        self.explore = Explore()
        super().__init__(self.explore)

    def begin(self, keys: Sequence[str], num_sequences: int) -> list[str]:
        self.explore.earn(num_sequences)
        return super().begin(keys, num_sequences)


def _run(pauses: Pauses, net: dict[str, float], steps: int, number: int | None = None) -> dict[str, int]:
    """Step; return in how many steps each sequence drafted. `net`: what its drafts bring in each, less their cost."""
    drafted = dict.fromkeys(net, 0)
    for _ in range(steps):
        active = pauses.begin(list(net), number or len(net))
        for key in active:
            drafted[key] += 1
            pauses.record(key, 1, net[key], number or len(net))
    return drafted


def test_a_sequence_that_gains_always_drafts_and_one_that_loses_seldom_drafts() -> None:
    drafted = _run(_Engine(), {"good": 0.5, **{f"bad {i}": -0.1 for i in range(7)}}, 1000)
    assert drafted.pop("good") == 1000
    assert all(8 <= number < 100 for number in drafted.values())


def test_pauses_grow_while_trials_fail_and_start_over_after_one_that_does_not() -> None:
    pauses, drafted = _Engine(), list[int]()
    for step in range(1, 700):
        if pauses.begin(["a"], 16):
            drafted.append(step)
            pauses.record("a", 1, -0.2, 16)
    assert drafted == [
        *range(1, 5),
        *range(32, 36),
        *range(80, 84),
        *range(160, 164),
        *range(304, 308),
        *range(576, 580),
    ]
    _run(pauses, {"a": 1.0}, 600, 16)
    assert 20 < _run(pauses, {"a": -1.0}, 80, 16)["a"] < 36, "it gives back what it gained last"
    assert 4 <= _run(pauses, {"a": -1.0}, 64, 16)["a"] <= 12


@pytest.mark.parametrize(("number", "drafts_on"), [(1, True), (2, False)])
def test_alone_a_sequence_has_time_to_make_up_for_a_bad_start(number: int, drafts_on: bool) -> None:
    pauses, drafted = _Engine(), 0
    for step in range(100):
        if pauses.begin(["a"], number):
            drafted += 1
            pauses.record("a", 1, 0.5 * (step >= 4) - 0.25, number)
    assert (drafted == 100) is drafts_on


@pytest.mark.parametrize(
    ("number", "cost", "looked"),
    [
        (1, 0.1, [1, 2, 3, 6, 11, 20, 29, 38]),
        (1, 0.05, [*range(1, 7), 9, 14, 23, 32]),
        (1, 0.0, [*range(1, 40)]),
        (2, 0.0, [*range(1, 40)]),
    ],
)
def test_alone_looking_for_drafts_backs_off_where_it_finds_none(number: int, cost: float, looked: list[int]) -> None:
    pauses = _Engine()

    def look(step: int, num_nodes: int) -> bool:
        active = bool(pauses.begin(["a"], number))
        if active:
            pauses.record("a", num_nodes, 1.0 * (num_nodes > 0) - cost, number)
        return active

    assert [step for step in range(1, 40) if look(step, 0)] == looked
    assert any(look(step, 1) for step in range(40, 49)), "it looks again"
    assert all(look(step, step % 2) for step in range(49, 80)), "a draft ends the back-off"


def test_trials_lose_at_most_their_share() -> None:
    pauses, lost, emitted = _Engine(), 0.0, 0
    for step in range(20_000):
        keys = [f"{i} {step // 64}" for i in range(16)]  # short requests, whose drafts never pay
        for key in pauses.begin(keys, 16):
            pauses.record(key, 1, -0.3, 16)
            lost += 0.3
        emitted += 16
        if step % 64 == 63:
            for key in keys:
                pauses.forget(key)
    assert 0.002 * emitted < lost < 0.004 * emitted + 8.0 + 4 * 0.3


def test_a_lower_load_is_a_new_chance() -> None:
    pauses = _Engine()
    _run(pauses, {"a": -0.5}, 300, number=16)
    assert _run(pauses, {"a": 0.5}, 20, number=1) == {"a": 20}


def test_proposers_learn_on_in_pauses_if_drafts_pay_in_general() -> None:
    pauses = _Engine()
    _run(pauses, {str(i): 0.5 for i in range(15)}, 200)
    net = {"bad": -1.0}
    assert _run(pauses, net, 16, number=15) == {"bad": 4}
    assert not pauses.drops_states("bad")
    only = _Engine()
    _run(only, net, 10, number=15)
    assert only.drops_states("bad"), "drafts pay for nobody"


def test_trials_begun_at_a_lower_load_need_room_at_a_higher_one() -> None:
    """Prompts of a wave are read one after the other: some sequences decode before the others."""
    pauses, keys = _Engine(), [str(i) for i in range(16)]
    active = []
    for number in (1, 2, 4, 8, 16):
        active = pauses.begin(keys[:number], number)  # in steps that read prompts too, of which nothing is learnt
    assert len(active) == 3, "as many as the budget lets begin"
    assert pauses.begin(keys, 16) == active, "which then goes on"
