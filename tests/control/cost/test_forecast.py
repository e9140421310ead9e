"""Forecasts carry on the past in a straight line, with bounds, and say so."""

from dataclasses import astuple, replace

import pytest

from prolepsis.control.cost.meter import LEAST_SPANS, WINDOW_S, RateWindow, Snapshot, UsageTotals, forecast
from prolepsis.control.cost.prices import Price
from prolepsis.core.stats import DeviceSeconds

PRICE = Price(name="a", per_device_hour=2.0)


def spent(device_s: float, tokens: int, predicted: float = 0.0) -> UsageTotals:
    return UsageTotals(1, tokens, DeviceSeconds(plain=device_s, predicted_plain=predicted))


def past(device_s: float, saved_s: float, tokens: int, seconds: float = 3600.0) -> list[Snapshot]:
    """Return a past in which all happens at an even rate."""
    parts = [i / LEAST_SPANS for i in range(LEAST_SPANS + 1)]
    return [Snapshot(100.0 + p * seconds, 5.0 + p * device_s, p * saved_s, 50 + round(p * tokens)) for p in parts]


def test_a_month_is_the_past_carried_on() -> None:
    found = forecast(past(900.0, -90.0, 7200), PRICE)
    assert (found.looks_back_s, found.busy) == (3600.0, 0.25)
    assert found.device_hours.estimate == pytest.approx(182.5)
    assert found.num_output_tokens.estimate == pytest.approx(730 * 7200)
    assert found.amount_of_use is not None
    assert astuple(found.amount_of_use) == pytest.approx((365.0, 365.0, 365.0)), "it was even"
    assert found.amount_of_device == pytest.approx(1460.0)
    assert found.saved_device_hours.estimate == pytest.approx(-18.25)
    assert found.saved_amount is not None
    assert found.saved_amount.estimate == pytest.approx(-36.5)
    for part in ("the last 1.0 h", "without growth", "730 hours", "prediction", "prices stay those of a"):
        assert part in found.assumes


def test_bounds_are_wide_where_the_past_was_uneven() -> None:
    """One burst of requests was told as a month of bursts."""
    even = past(900.0, 90.0, 7200)
    values = [even[0]] * 4 + [even[-1]] * 9
    burst = [replace(value, at=one.at) for one, value in zip(even, values, strict=True)]
    found = forecast(burst, PRICE)
    assert astuple(found.device_hours) == pytest.approx((182.5, 0.0, 584.2), abs=1.0)
    assert found.saved_amount is not None
    _, least, most = astuple(found.saved_amount)
    assert least < 0.0 < most


def test_a_reserved_device_saves_room_and_no_money() -> None:
    reserved = Price(name="a", per_device_hour=2.0, term="reserved")
    found = forecast(past(900.0, 90.0, 7200), reserved)
    assert found.saved_amount is None
    assert found.saved_device_hours.estimate == pytest.approx(18.25)


def test_without_prices_there_is_no_money() -> None:
    found = forecast(past(360.0, 36.0, 60), None)
    assert (found.amount_of_use, found.amount_of_device, found.saved_amount) == (None, None, None)
    assert found.device_hours.estimate == pytest.approx(73.0)
    assert "no prices are known" in found.assumes


def test_the_forecast_waits_for_an_hour_and_looks_back_one_day() -> None:
    now = [0.0]
    pace = RateWindow(lambda: now[0])
    for part in range(1, 13):
        assert pace.forecast(spent(1.0, 1), None) is None
        now[0] = 300.0 * part
        pace.poll(spent(1.0, 1))
    assert pace.forecast(spent(1.0, 1), None) is not None
    for hour in range(2, 101):
        now[0] = 3600.0 * hour
        pace.poll(spent(360.0 * min(hour, 50), 100 * hour))
    late = pace.forecast(spent(360.0 * 50, 10_000), None)
    assert late is not None
    assert late.looks_back_s == WINDOW_S
    assert late.busy == 0.0
    assert late.num_output_tokens.estimate == pytest.approx(73_000)
