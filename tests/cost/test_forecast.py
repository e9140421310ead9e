"""Forecasts carry on the past in a straight line, and say so."""

import pytest

from prolepsis.core.stats import DeviceSeconds
from prolepsis.cost.meter import MIN_S, WINDOW_S, RateWindow, Snapshot, UsageTotals, forecast
from prolepsis.cost.prices import Price

PRICE = Price(name="a", per_device_hour=2.0)


def spent(device_s: float, tokens: int, predicted: float = 0.0) -> UsageTotals:
    return UsageTotals(1, tokens, DeviceSeconds(plain=device_s, predicted_plain=predicted))


def test_a_month_is_the_past_carried_on() -> None:
    found = forecast(Snapshot(100.0, 5.0, 0.0, 50), Snapshot(3700.0, 905.0, -90.0, 7250), PRICE)
    assert (found.looks_back_s, found.busy) == (3600.0, 0.25)
    assert found.device_hours == pytest.approx(182.5)
    assert found.num_output_tokens == pytest.approx(730 * 7200)
    assert found.amount_of_use == pytest.approx(365.0)
    assert found.amount_of_device == pytest.approx(1460.0)
    assert found.saved_device_hours == pytest.approx(-18.25)
    assert found.saved_amount == pytest.approx(-36.5)
    for part in ("the last 1.0 h", "without growth", "730 hours", "prediction", "prices stay those of a"):
        assert part in found.assumes


def test_without_prices_there_is_no_money() -> None:
    found = forecast(Snapshot(0.0, 0.0, 0.0, 0), Snapshot(600.0, 60.0, 6.0, 10), None)
    assert (found.amount_of_use, found.amount_of_device, found.saved_amount) == (None, None, None)
    assert found.device_hours == pytest.approx(73.0)
    assert "no prices are known" in found.assumes


def test_the_forecast_looks_back_one_day() -> None:
    now = [0.0]
    pace = RateWindow(lambda: now[0])
    assert pace.forecast(spent(1.0, 1), None) is None
    now[0] = MIN_S
    assert pace.forecast(spent(1.0, 1), None) is not None
    for hour in range(1, 101):
        now[0] = 3600.0 * hour
        pace.poll(spent(360.0 * min(hour, 50), 100 * hour))
    late = pace.forecast(spent(360.0 * 50, 10_000), None)
    assert late is not None
    assert late.looks_back_s == WINDOW_S
    assert late.busy == 0.0
    assert late.num_output_tokens == pytest.approx(73_000)
