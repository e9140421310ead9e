"""The device's time at the prices of its time: paid, used and idle."""

import pytest

from prolepsis.control.cost.device_time import PERIOD_S, DeviceTime, PricesOverTime
from prolepsis.control.cost.prices import PriceInUse
from tests.clock import Clock

CHEAP = PriceInUse(name="x", per_device_hour=3.6, currency="EUR", version="1@a")
DEAR = PriceInUse(name="x", per_device_hour=10.8, currency="EUR", version="2@b")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def device(clock: Clock) -> DeviceTime:
    return DeviceTime(clock, clock)


def test_an_amount_is_the_sum_over_the_prices_in_force() -> None:
    prices = PricesOverTime()
    prices.use(0.0, 1.0)
    prices.use(10.0, 3.0)
    assert prices.amount(5.0, 15.0) == pytest.approx(5.0 + 15.0)
    assert prices.mean(5.0, 15.0) == pytest.approx(2.0)
    assert (prices.mean(4.0, 4.0), prices.mean(12.0, 12.0)) == (1.0, 3.0)


def test_idle_time_is_paid_and_not_used(device: DeviceTime, clock: Clock) -> None:
    device.price(CHEAP)
    clock.now += 100.0
    assert device.charge(10.0, 20.0, 2000) == pytest.approx(0.01)
    total = device.total()
    assert (total.held_s, total.used_s) == (100.0, 10.0)
    assert (total.amount_paid, total.amount_used) == pytest.approx((0.1, 0.01))
    assert (total.paid_per_million_tokens, total.used_per_million_tokens) == pytest.approx((50.0, 5.0))


def test_a_new_price_changes_no_amount_of_the_past(device: DeviceTime, clock: Clock) -> None:
    device.price(CHEAP)
    clock.now += 100.0
    device.charge(10.0, 10.0, 100)
    device.price(DEAR)
    assert device.total().amount_used == pytest.approx(0.01)
    clock.now += 50.0
    assert device.charge(10.0, 100.0, 100) == pytest.approx(10.0 * 0.002), "half of it at each price"
    total = device.total()
    assert total.amount_paid == pytest.approx(100.0 * 0.001 + 50.0 * 0.003)
    assert [(one.price, one.held_s) for one in (*device.closed, device.current())] == [
        ("1@a/x", 100.0),
        ("2@b/x", 50.0),
    ]


def test_a_period_is_an_hour(device: DeviceTime, clock: Clock) -> None:
    device.price(CHEAP)
    for _ in range(3):
        clock.now += PERIOD_S / 2
        device.charge(1.0, 1.0, 10)
        device.poll()
    [period] = device.closed
    assert (period.started_at, period.ended_at, period.num_output_tokens) == (1000.0, 1000.0 + PERIOD_S, 20)
    assert device.total().num_output_tokens == 30


def test_without_a_price_there_are_seconds_and_no_money(device: DeviceTime, clock: Clock) -> None:
    clock.now += 10.0
    assert device.charge(1.0, 1.0, 10) is None
    total = device.total()
    assert (total.held_s, total.amount_paid, total.paid_per_million_tokens) == (10.0, None, None)
