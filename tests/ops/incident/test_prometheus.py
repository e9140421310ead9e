"""Questions to Prometheus, and its refusals."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

import httpx2
import pytest

from prolepsis.core.errors import ConfigError
from prolepsis.ops.incident.period import Period
from prolepsis.ops.incident.prometheus import Firing, Prometheus, SeriesValues, Times, times_of

START = 1_700_000_000.0
HOUR = Period(datetime.fromtimestamp(START, UTC), datetime.fromtimestamp(START + 3600, UTC))
LABELS = {"alertname": "AcceptanceFell", "severity": "page"}


def replying(series: Mapping[str, object]) -> Prometheus:
    document = {"status": "success", "data": {"resultType": "matrix", "result": [series]}}
    return asked(lambda _: httpx2.Response(200, json=document))


def asked(reply: Callable[[httpx2.Request], httpx2.Response]) -> Prometheus:
    return Prometheus("http://prometheus:9090/", httpx2.MockTransport(reply))


def test_an_alert_that_paused_fired_twice() -> None:
    at = [START + 15 * i for i in (4, 5, 6, 20, 21)]
    series = {
        "metric": {"__name__": "ALERTS", "alertstate": "firing", **LABELS},
        "values": [[time, "1"] for time in at],
    }
    assert replying(series).firing(HOUR) == [
        Firing(LABELS, START + 60, START + 105),
        Firing(LABELS, START + 300, START + 330),
    ]


def test_an_alert_that_still_fires_has_no_end() -> None:
    series = {"metric": {"__name__": "ALERTS", **LABELS}, "values": [[START + 3585, "1"], [START + 3600, "1"]]}
    assert replying(series).firing(HOUR) == [Firing(LABELS, START + 3585, None)]


def test_an_alert_from_before_the_period_says_so() -> None:
    series = {"metric": {"__name__": "ALERTS", **LABELS}, "values": [[START, "1"], [START + 15, "1"]]}
    assert replying(series).firing(HOUR) == [Firing(LABELS, START, START + 30, from_before=True)]


def test_an_alert_that_fires_now_has_no_end_where_the_period_lies_ahead() -> None:
    """With --to an hour ahead each alert that fired got an end, five minutes from now."""
    asked_for: list[httpx2.URL] = []

    def reply(request: httpx2.Request) -> httpx2.Response:
        asked_for.append(request.url)
        series = {"metric": {"__name__": "ALERTS", **LABELS}, "values": [[START + 600, "1"], [START + 615, "1"]]}
        return httpx2.Response(200, json={"data": {"result": [series]}})

    ahead = Prometheus("http://prometheus:9090/", httpx2.MockTransport(reply), now=lambda: START + 620)
    assert ahead.firing(HOUR) == [Firing(LABELS, START + 600, None)]
    assert float(asked_for[0].params["end"]) == START + 620
    later = Period(HOUR.end, HOUR.end + timedelta(hours=1))
    assert (ahead.firing(later), ahead.lines("x", times_of(later))) == ([], [])
    assert len(asked_for) == 1


def test_values_come_with_their_labels() -> None:
    assert replying({"metric": {"sloth_slo": "availability"}, "value": [START, "0.75"]}).values("x", START) == [
        ({"sloth_slo": "availability"}, 0.75)
    ]


def test_lines_have_a_value_for_each_time_or_none() -> None:
    minute = Period(HOUR.start, HOUR.start + timedelta(minutes=1))
    assert times_of(minute) == Times(START, 15.0, 5)
    series = {"metric": {"tier": "batch"}, "values": [[START + 15, "0.5"], [START + 30, "NaN"], [START + 60, "2"]]}
    assert replying(series).lines("x", times_of(minute)) == [
        SeriesValues({"tier": "batch"}, [None, 0.5, None, None, 2.0])
    ]


def test_a_long_period_has_no_more_points_than_a_short_one() -> None:
    day = times_of(Period(HOUR.start, HOUR.start + timedelta(days=1)))
    assert (day.step_s, day.number) == (360.0, 241)
    asked_for: list[httpx2.URL] = []

    def reply(request: httpx2.Request) -> httpx2.Response:
        asked_for.append(request.url)
        values = [[START + 86_400.0, "1"]]
        return httpx2.Response(200, json={"data": {"result": [{"metric": {}, "values": values}]}})

    [line] = asked(reply).lines("x", day)
    assert line.values[-1] == 1.0
    assert {name: float(asked_for[0].params[name]) for name in ("start", "end", "step")} == {
        "start": START,
        "end": START + 86_400.0,
        "step": 360.0,
    }


def unreachable(request: httpx2.Request) -> httpx2.Response:
    raise httpx2.ConnectError("refused", request=request)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (unreachable, "no Prometheus answers at http://prometheus:9090: refused"),
        (lambda _: httpx2.Response(200, text="<html>"), "no Prometheus answers"),
        (lambda _: httpx2.Response(400, json={"status": "error", "error": "bad query"}), "400 bad query"),
        (lambda _: httpx2.Response(200, json=[1]), "did not reply as Prometheus does: 200"),
    ],
)
def test_a_server_that_cannot_be_asked_is_named(
    reply: Callable[[httpx2.Request], httpx2.Response], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        asked(reply).firing(HOUR)


def test_an_address_that_is_no_url_is_refused_with_an_example() -> None:
    with pytest.raises(ConfigError, match="--prometheus is 'localhost:9090'; allowed: its URL, such as http://"):
        Prometheus("localhost:9090").firing(HOUR)
