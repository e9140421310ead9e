import pytest

from prolepsis.spec.comparison import CostRatios, StepComparison, StepCost, load_band


def _plain(ms: float, number: int = 4, drafting_ms: float = 0.0) -> StepCost:
    """A step predicted at 10 ms."""
    return StepCost(number, number, 0, ms, 10.0, drafting_ms)


def _drafted(ms: float, number: int = 4, num_tokens: int = 8) -> StepCost:
    """A step predicted at 10 ms without drafts; making them took 0.5 ms, verifying them was predicted to take 2."""
    return StepCost(number, num_tokens, 4, ms, 10.0, 0.5, 2.0)


def _compared(*steps: StepCost, times: int = 200) -> StepComparison:
    comparison = StepComparison()
    for _ in range(times):
        for step in steps:
            comparison.observe(step)
    return comparison


@pytest.mark.parametrize(
    ("plain_ms", "drafted_ms", "plain", "verifying"),
    [(10.0, 12.5, 1.0, 1.0), (10.0, 14.5, 1.0, 2.0), (10.0, 11.5, 1.0, 0.5), (5.0, 6.5, 0.5, 0.5)],
)
def test_ratios_are_those_of_measured_to_predicted_time(
    plain_ms: float, drafted_ms: float, plain: float, verifying: float
) -> None:
    found = _compared(_plain(plain_ms), _drafted(drafted_ms)).ratios(4)
    assert found.plain == pytest.approx(plain)
    assert found.verifying == pytest.approx(verifying, rel=0.05)


def test_learning_of_proposers_is_not_part_of_a_plain_step() -> None:
    found = _compared(_plain(11.0, drafting_ms=1.0), _drafted(12.5)).ratios(4)
    assert (found.plain, found.verifying) == pytest.approx((1.0, 1.0), rel=0.05)


def test_no_ratio_without_a_step_to_compare_with() -> None:
    assert _compared(_drafted(50.0)).ratios(4) == CostRatios(1.0, 1.0)


def test_each_load_is_compared_for_itself_and_begins_as_the_last_one() -> None:
    comparison = _compared(_plain(10.0), _drafted(16.5))
    assert comparison.ratios(16).verifying == pytest.approx(3.0, rel=0.05)
    for _ in range(200):
        comparison.observe(_plain(10.0, 16))
        comparison.observe(_drafted(12.5, 16))
    assert comparison.ratios(16).verifying == pytest.approx(1.0, rel=0.15)
    assert comparison.ratios(3).verifying == pytest.approx(3.0, rel=0.05)


def test_one_slow_step_changes_little_and_a_change_that_stays_is_followed() -> None:
    comparison = _compared(_plain(10.0), _drafted(12.5))
    comparison.observe(_drafted(500.0))
    assert comparison.ratios(4).verifying < 1.2
    for _ in range(200):
        comparison.observe(_plain(10.0))
        comparison.observe(_drafted(18.5))
    assert comparison.ratios(4).verifying == pytest.approx(4.0, rel=0.15)


def test_a_ratio_that_is_too_high_is_found_out() -> None:
    comparison = _compared(_plain(10.0), _drafted(60.0))
    known = comparison.ratios(4).verifying
    found = [comparison.probing_ratios(4).verifying for _ in range(200)]
    assert found[:8] == [pytest.approx(0.4 * known)] * 8, "at first"
    assert found[8:16] == [known] * 8
    assert found[16:26] == [0.4] * 8 + [1.0] * 2, "after 16 steps without drafts"


def _references(comparison: StepComparison, num_tokens: int, steps: int = 4000) -> int:
    number = 0
    for _ in range(steps):
        if comparison.wants_reference(4):
            number += 1
            comparison.observe(_plain(10.0))
        else:
            comparison.observe(_drafted(12.0, num_tokens=num_tokens))
    return number


def test_references_are_many_where_they_lose_nothing_and_few_where_they_lose() -> None:
    assert _references(StepComparison(), num_tokens=4) == pytest.approx(4000 / 8, rel=0.02)
    comparison = StepComparison()
    _references(comparison, num_tokens=12)  # the first ones come sooner
    number = _references(comparison, num_tokens=12)  # a step without drafts emits a third in 10/12 of the time
    lost = number * (12 * 10 / 12 - 4) / (4000 * 12)
    assert 0.002 < lost < 0.0035


@pytest.mark.parametrize("speed", [1.4, 3.0])
def test_a_machine_that_becomes_faster_is_found_out_within_some_thirty_steps(speed: float) -> None:
    comparison = StepComparison()
    _references(comparison, num_tokens=12)
    num_drafted = 0
    while not comparison.wants_reference(4):
        num_drafted += 1
        comparison.observe(_drafted(12.0 / speed, num_tokens=12))
    comparison.observe(_plain(10.0 / speed))
    assert num_drafted <= 32
    assert comparison.ratios(4).plain == pytest.approx(1.0 / speed, rel=0.25)


def test_single_slow_steps_bring_no_reference() -> None:
    comparison = StepComparison()
    _references(comparison, num_tokens=12)
    number = 0
    for step in range(200):
        if comparison.wants_reference(4):
            number += 1
            comparison.observe(_plain(10.0))
        else:
            comparison.observe(_drafted(48.0 if step % 20 == 0 else 12.0, num_tokens=12))
    assert number <= 2


def test_loads_are_bands_up_to_powers_of_two() -> None:
    assert [load_band(n) for n in (1, 2, 3, 4, 5, 8, 9, 16, 17, 32)] == [0, 1, 2, 2, 3, 3, 4, 4, 5, 5]
