"""By simulation: drafting never loses more than a percent against the better of plain decoding and drafting always."""

import math
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prolepsis.engine.drafting.payback import Payback
from prolepsis.engine.drafting.worth import StepCost
from tests.simulation.drafting import Machine, Simulation

BOUND = 1.01
SOON_S, LATER_S, TOLD_S = 5.0, 20.0, 30.0
NARROW = ("rows are dear", 0.4, 4)
MACHINES = {
    "rows are nearly free": Machine(token_ms=0.02),
    "rows cost": Machine(token_ms=0.25),
    "rows are dear": Machine(token_ms=1.0),
    "half of what rows cost is seen": Machine(token_ms=0.25, hidden_ms=0.25),
    "most of what drafts cost is hidden": Machine(token_ms=0.1, hidden_ms=0.4),
}


def _plain(machine: Machine, number: int) -> float:
    """Return milliseconds per token."""
    return machine.plain_ms(number) / number


def _drafting(machine: Machine, chances: list[float], seconds: float = TOLD_S) -> float:
    """Return milliseconds per token where all sequences draft and what they cost is known."""
    return Simulation(machine, chances, error=1.0 + machine.hidden_ms / machine.token_ms).run(seconds)


@pytest.mark.parametrize("number", [4, *(pytest.param(number, marks=pytest.mark.night) for number in (1, 16))])
@pytest.mark.parametrize("chance", [0.02, 0.4, 0.8])
@pytest.mark.parametrize("name", MACHINES)
def test_costs_that_are_wrong_by_a_factor_of_two_lose_a_percent_at_most(name: str, chance: float, number: int) -> None:
    machine, chances = MACHINES[name], [chance] * number
    if (name, chance, number) == NARROW:
        pytest.skip("drafting always gains 3 % here: the next test")
    best = min(_drafting(machine, chances), _plain(machine, number))
    for error in (0.5, 2.0):
        simulation = Simulation(machine, chances, Payback(), error=error)
        simulation.run(SOON_S)
        assert simulation.run(TOLD_S) <= BOUND * best


def test_where_drafting_gains_three_percent_a_part_of_it_is_found() -> None:
    name, chance, number = NARROW
    machine, chances = MACHINES[name], [chance] * number
    plain, drafting = _plain(machine, number), _drafting(machine, chances)
    assert 0.96 < drafting / plain < 0.98
    for error in (0.5, 2.0):
        simulation = Simulation(machine, chances, Payback(), error=error)
        simulation.run(SOON_S)
        assert simulation.run(TOLD_S) < min(1.02 * drafting, plain)


def test_a_proposer_that_was_exchanged_for_another_leaves_nothing_behind() -> None:
    machine, payback, number = MACHINES["rows cost"], Payback(), 4
    Simulation(machine, [0.02] * number, payback).run(SOON_S)
    drafted = []
    for next_ in (payback, payback, Payback()):
        simulation = Simulation(machine, [0.4] * number, next_, seed=1)
        simulation.run(0.5)
        drafted.append(simulation.num_drafted[0.4])
        payback.start_over()
    assert drafted[0] < drafted[1] == drafted[2]


def test_a_hiccup_while_proposing_stops_no_drafts_that_pay() -> None:
    machine, chances = MACHINES["rows cost"], [0.8]
    simulation = Simulation(machine, chances, Payback(), length=96)
    simulation.run(SOON_S)
    simulation.replace(chances)  # on trial
    simulation.hiccup_ms = 200.0
    assert simulation.run(TOLD_S) <= 1.02 * _drafting(machine, chances), "0.7 % of the time is the hiccup itself"


@pytest.mark.parametrize("slowness", [1.4, 1.9, 6.0])
@pytest.mark.parametrize("number", [4, pytest.param(24, marks=pytest.mark.night)])
@pytest.mark.parametrize("name", MACHINES)
def test_a_machine_that_was_slow_at_first_misleads_for_a_moment_only(name: str, number: int, slowness: float) -> None:
    machine, chances = MACHINES[name], [0.4] * number
    best = min(_drafting(machine, chances), _plain(machine, number))
    simulation = Simulation(machine, chances, Payback())
    simulation.slowness = slowness
    simulation.run(0.5)
    simulation.slowness = 1.0
    assert simulation.run(5.0) <= 1.08 * best, "up to 2.05 where such steps count as the machine's"


def test_without_it_such_costs_lose_more() -> None:
    machine, chances = MACHINES["most of what drafts cost is hidden"], [0.4] * 16
    assert Simulation(machine, chances).run(TOLD_S) > 1.1 * _plain(machine, 16)


def test_a_cost_that_jumps_is_followed_both_ways() -> None:
    """27 times what was predicted, within 5 seconds; back again, where only trials tell, within 20."""
    cheap, dear, chances = Machine(token_ms=0.02), Machine(token_ms=0.02, hidden_ms=0.8), [0.6] * 8
    simulation = Simulation(cheap, chances, Payback())
    simulation.run(SOON_S)
    for machine, found_s in ((dear, SOON_S), (cheap, LATER_S), (dear, SOON_S)):
        simulation.machine = machine
        simulation.run(found_s)
        best = min(_drafting(machine, chances, 4 * TOLD_S), _plain(machine, 8))
        assert simulation.run(2 * TOLD_S) <= BOUND * best


def test_a_good_sequence_drafts_on_among_useless_ones() -> None:
    machine, useless = MACHINES["rows cost"], [0.02] * 15
    alone = Simulation(machine, [0.9, *useless], Payback())
    alone.run(SOON_S)
    before = dict(alone.num_drafted)
    found = alone.run(TOLD_S)
    assert found < 0.93 * _plain(machine, 16), "it emits 4 tokens a step: 19 in the time of 17"
    drafted = {chance: number - before.get(chance, 0) for chance, number in alone.num_drafted.items()}
    assert drafted[0.9] > 20 * drafted[0.02]


def test_useless_ones_that_follow_good_ones_stop_within_seconds() -> None:
    machine = MACHINES["rows cost"]
    simulation = Simulation(machine, [0.9] * 8, Payback())
    simulation.run(TOLD_S)
    simulation.replace([0.02] * 8)
    simulation.run(SOON_S)
    assert simulation.run(TOLD_S) <= BOUND * _plain(machine, 8)


class CountedPayback(Payback):
    """Counts the steps begun and those observed."""

    def __init__(self) -> None:
        super().__init__()
        self.num_begun = self.num_observed = 0

    def begin(self, keys: Sequence[str], num_sequences: int, *, only_decodes: bool = True) -> frozenset[str]:
        self.num_begun += 1
        return super().begin(keys, num_sequences)

    def observe(self, step: StepCost, drafts: Mapping[str, tuple[int, int]]) -> None:
        self.num_observed += 1
        super().observe(step, drafts)


@pytest.mark.parametrize(("chance", "least", "most"), [(0.02, 0.25, 0.5), (0.8, 1.0, 1.0)])
def test_of_steps_in_which_all_pause_one_in_four_is_observed(chance: float, least: float, most: float) -> None:
    payback = CountedPayback()
    Simulation(MACHINES["rows cost"], [chance] * 4, payback).run(TOLD_S)
    assert least <= payback.num_observed / payback.num_begun <= most


def test_steps_that_read_prompts_leave_out_no_drafts_to_be_compared_with() -> None:
    """They are not observed: one that was left without drafts would call for the next."""
    payback = Payback()
    assert all(payback.begin(["a"], 1, only_decodes=False) for _ in range(100))
    assert not all(payback.begin(["a"], 1) for _ in range(100))


_MS = st.sampled_from([0.0, 1e-9, 0.1, 2.0, 3.0, 500.0, math.nan, math.inf])


@given(
    st.lists(
        st.tuples(
            st.integers(1, 9),  # sequences
            st.sampled_from([0, 0, 1, 4]),  # draft tokens of each
            st.integers(0, 3),  # tokens that each emitted; 0: its request failed in the step
            st.tuples(_MS, _MS, _MS, _MS),  # of the step, plainly, of making drafts, of verifying them
            st.booleans(),  # its sequences end
        ),
        max_size=60,
    )
)
def test_no_events_stop_decisions(events: list[tuple[int, int, int, tuple[float, float, float, float], bool]]) -> None:
    """Failures, also in the first step with drafts, empty steps, clocks that stand still: figures stay finite."""
    payback = Payback()
    for number, nodes, emitted, (ms, plain_ms, drafting_ms, verifying_ms), ends in events:
        keys = [str(i) for i in range(number)]
        payback.explore.earn(number)
        active = payback.begin(keys, number)
        found = payback.correction(number)
        assert all(0.0 <= one < math.inf for one in (found.plain, found.verifying, found.token_ms))
        drafts = dict.fromkeys(active, (nodes, emitted - 1))
        num_drafted = nodes * len(active)
        cost = StepCost(number, number * emitted, num_drafted, ms, plain_ms, drafting_ms, verifying_ms)
        payback.observe(cost, drafts)
        for key in keys if ends else ():
            payback.forget(key)


def test_a_first_drafted_step_that_emitted_nothing_stops_no_later_one() -> None:
    payback = Payback()
    payback.observe(StepCost(1, 1, 0, 2.0, 2.0, 0.0), {})
    payback.begin(["a"], 1)
    payback.observe(StepCost(1, 0, 4, 3.0, 2.0, 0.1, 0.5), {"a": (4, -1)})
    assert payback.begin(["b"], 1) == {"b"}
