from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prolepsis.engine.drafting.cost import CostCurve, profile_cost

positive = st.floats(0.1, 100.0)


@given(st.lists(st.lists(positive, min_size=3, max_size=3), min_size=4, max_size=4))
def test_never_falls_in_rows_or_context_for_any_measurement(ms: list[list[float]]) -> None:
    curve = CostCurve((1, 4, 8, 16), (0, 512, 1024), ms)
    for context in range(0, 2048, 256):
        table = curve.table(40, context)
        assert all(a <= b + 1e-9 for a, b in pairwise(table))
    for rows in (1, 3, 16, 30):
        by_context = [curve.ms(rows, context) for context in range(0, 2048, 256)]
        assert all(a <= b + 1e-9 for a, b in pairwise(by_context))


@given(
    st.lists(st.lists(positive, min_size=3, max_size=3), min_size=4, max_size=4),
    st.integers(0, 200),
    st.integers(0, 200),
    st.integers(0, 20_000),
)
def test_more_tokens_never_take_less_where_one_number_is_in_a_table_and_the_other_is_not(
    ms: list[list[float]], few: int, more: int, context: int
) -> None:
    curve = CostCurve((1, 4, 8, 16), (64, 512, 1024), ms)
    assert curve.ms(1 + few, 0) <= curve.ms(1 + few, context) + 1e-9
    assert curve.ms(1 + few, context) <= curve.ms(1 + few + more, context) + 1e-9


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-1.0", "0.0"])
def test_a_stored_curve_of_no_time_is_measured_again(value: str) -> None:
    with pytest.raises(ValueError, match="above 0"):
        CostCurve.from_json(f'{{"tokens": [1], "contexts": [0], "ms": [[{value}]]}}')


def test_interpolates_between_points_and_extrapolates_beyond() -> None:
    curve = CostCurve((1, 5, 9), (0, 512), ((10.0, 12.0), (14.0, 16.0), (18.0, 20.0)))
    assert curve.ms(3, 0) == pytest.approx(12.0)
    assert curve.ms(1, 256) == pytest.approx(11.0)
    assert curve.ms(19, 0) == pytest.approx(28.0)
    assert curve.ms(1, 1024) == pytest.approx(14.0)


def test_steps_of_the_curve_are_kept() -> None:
    curve = CostCurve((1, 8, 9, 16), (0,), ((10.0,), (10.0,), (20.0,), (20.0,)))
    assert (curve.ms(8, 0), curve.ms(9, 0), curve.ms(16, 0)) == (10.0, 20.0, 20.0)


@pytest.mark.parametrize("shapes", [(1, 8, 32, 64), (1, 2, 4, 8, 16, 32, 64)])
def test_a_forward_that_pads_to_shapes_is_profiled_with_its_steps(shapes: tuple[int, ...]) -> None:
    def measure(rows: int, context: int) -> float:
        return 5.0 + 0.1 * next(shape for shape in shapes if shape >= rows)

    curve = profile_cost(measure, contexts=(64,), repeats=1)
    assert [curve.ms(rows, 64) for rows in range(1, 65)] == pytest.approx([measure(r, 64) for r in range(1, 65)])


def test_profile_ignores_what_others_add() -> None:
    calls: dict[tuple[int, int], int] = {}

    def measure(rows: int, context: int) -> float:
        calls[rows, context] = calls.get((rows, context), 0) + 1
        return 200.0 if calls[rows, context] in (1, 2, 4) else 5.0 + rows + context / 100.0  # warm-up and two hiccups

    curve = profile_cost(measure, tokens=(1, 8), contexts=(0, 512), repeats=3)
    assert curve.ms(8, 512) == pytest.approx(18.12)


def test_a_busy_machine_is_measured_until_rounds_find_no_less() -> None:
    rounds: dict[tuple[int, int], int] = {}

    def measure(rows: int, context: int) -> float:
        number = rounds[rows, context] = rounds.get((rows, context), -1) + 1  # 0: warm-up
        return (4.0 + rows) * (1.0 if number >= 6 else 10.0 / (1 + number))

    curve = profile_cost(measure, tokens=(1, 8), contexts=(64,), repeats=3)
    assert (curve.ms(1, 64), curve.ms(8, 64)) == pytest.approx((5.0, 12.0))
    assert set(rounds.values()) == {7}, "the seventh round found nothing new"


def test_a_machine_that_stays_busy_does_not_hold_the_start_up() -> None:
    number = 0

    def measure(rows: int, context: int) -> float:
        nonlocal number
        number += 1
        return 200.0 * 0.9**number

    profile_cost(measure, tokens=(1, 8), contexts=(64,), repeats=3)
    assert number == 2 + 12 * 2


def test_passes_that_take_minutes_together_are_measured_once() -> None:
    calls: list[tuple[int, int]] = []

    def measure(rows: int, context: int) -> float:
        calls.append((rows, context))
        return 2000.0 * rows

    profile_cost(measure, tokens=(1, 8), contexts=(64, 512), repeats=3)
    assert len(calls) == 4


def test_long_passes_are_measured_less_often_and_short_ones_as_before() -> None:
    calls: dict[tuple[int, int], int] = {}

    def measure(rows: int, context: int) -> float:
        number = calls[rows, context] = calls.get((rows, context), 0) + 1
        return {1: 100.0, 8: 200.0, 64: 3000.0}[rows] * (2.0 if number == 1 else 1.0)

    curve = profile_cost(measure, tokens=(1, 8, 64), contexts=(64,), repeats=3)
    assert calls == {(1, 64): 4, (8, 64): 3, (64, 64): 2}
    assert [curve.ms(rows, 64) for rows in (1, 8, 64)] == [100.0, 200.0, 3000.0]


def test_short_passes_are_measured_until_they_settle_beside_long_ones() -> None:
    number = {1: 0, 64: 0}

    def measure(rows: int, context: int) -> float:
        number[rows] += 1
        return 9000.0 if rows == 64 else max(10.0, 40.0 - 5.0 * number[rows])

    curve = profile_cost(measure, tokens=(1, 64), contexts=(64,), repeats=3)
    assert number == {1: 7, 64: 2}, "the sixth round found no less"
    assert curve.ms(1, 64) == 10.0


def test_survives_json() -> None:
    curve = CostCurve((1, 8), (0, 512), ((10.0, 12.0), (11.0, 13.0)))
    again = CostCurve.from_json(curve.to_json())
    assert again.table(20, 700) == curve.table(20, 700)


@pytest.mark.parametrize("text", ["[]", "{}", '{"tokens": [1], "contexts": [0], "ms": []}', "x", '{"tokens": 3}'])
def test_refuses_an_invalid_curve(text: str) -> None:
    with pytest.raises(ValueError, match=r"cost curve|Expecting"):
        CostCurve.from_json(text)
