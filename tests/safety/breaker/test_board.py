"""All breakers of an engine: apart by proposer and traffic class."""

from prolepsis.core.plan import LeftOut
from prolepsis.core.stats import TrafficClassCounts
from prolepsis.safety.breaker import Breakers, BreakerSettings


def reading(proposer: str, traffic_class: str, judged: int, right: int) -> TrafficClassCounts:
    return TrafficClassCounts(proposer, traffic_class, num_asked=judged, num_judged=judged, num_right=right)


def test_one_traffic_class_of_one_proposer_is_left_out_and_no_other() -> None:
    breakers = Breakers(BreakerSettings())
    counts = [reading("head", "chat", 500, 0), reading("head", "code", 500, 300), reading("suffix", "chat", 500, 200)]
    [event] = breakers.observe(counts, now=1.0)
    assert (event.proposer, event.traffic_class) == ("head", "chat")
    assert breakers.left_out() == (LeftOut("head", "chat"),)
    assert {key: breaker.state for key, breaker in breakers.all.items()} == {
        ("head", "chat"): "open",
        ("head", "code"): "closed",
        ("suffix", "chat"): "closed",
    }


def test_one_may_be_set_before_anything_is_counted() -> None:
    breakers = Breakers(BreakerSettings())
    [event] = breakers.set("head", "chat", "forced_open", 1.0, "kim")
    assert event.after == "forced_open"
    assert breakers.left_out() == (LeftOut("head", "chat"),)
    assert breakers.observe([reading("head", "chat", 500, 400)], 2.0) == []
    breakers.set("head", "chat", "closed", 3.0, "kim")
    assert breakers.left_out() == ()


def test_all_may_only_measure_at_first() -> None:
    breakers = Breakers(BreakerSettings(), metrics_only=True)
    [event] = breakers.observe([reading("head", "chat", 500, 0)], now=1.0)
    assert (event.before, event.after, event.reason) == ("metrics_only", "metrics_only", "acceptance")
    assert breakers.left_out() == ()
    breakers.set("head", "chat", "closed", 2.0, "kim")
    breakers.observe([reading("head", "chat", 1000, 0)], now=3.0)
    assert breakers.left_out() == (LeftOut("head", "chat"),)


def test_one_is_opened_for_what_something_else_has_seen_and_probed_like_any_other() -> None:
    breakers = Breakers(BreakerSettings(open_s=10.0))
    breakers.observe([reading("head", "chat", 500, 400)], 1.0)
    [event] = breakers.trip("head", "chat", "cliff", 2.0)
    assert (event.after, event.reason, event.open_s) == ("open", "cliff", 10.0)
    assert breakers.left_out() == (LeftOut("head", "chat"),)
    assert breakers.trip("head", "chat", "cliff", 3.0) == (), "it is open"
    [probed] = breakers.observe([reading("head", "chat", 500, 400)], 13.0)
    assert probed.after == "half_open"
    breakers.set("suffix", "chat", "forced_closed", 4.0, "kim")
    assert breakers.trip("suffix", "chat", "cliff", 5.0) == (), "what was set by hand stays"
