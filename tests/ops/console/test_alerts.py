"""Alerts that Alertmanager has, on the overview."""

from collections.abc import Callable

import httpx2
import pytest

from prolepsis.ops.console.alerts import MOST_BYTES, AlertsFeature, AlertsReply

FIRES = {
    "labels": {"alertname": "StoreDown", "severity": "page", "instance": "a:8000"},
    "annotations": {"summary": "a:8000 cannot write its store", "runbook_url": "http://x"},
    "startsAt": "2026-11-26T18:00:00.000Z",
    "endsAt": "2026-11-26T19:00:00.000Z",
    "status": {"state": "active", "silencedBy": [], "inhibitedBy": []},
    "receivers": [{"name": "page"}],
}


async def asked(reply: Callable[[httpx2.Request], httpx2.Response]) -> AlertsReply:
    feature = AlertsFeature("http://alertmanager:9093", httpx2.MockTransport(reply))
    await feature.tick()
    return feature.shown()


async def test_alerts_that_fire_are_listed() -> None:
    asked_for: list[str] = []

    def reply(request: httpx2.Request) -> httpx2.Response:
        asked_for.append(str(request.url))
        return httpx2.Response(200, json=[FIRES])

    found = await asked(reply)
    assert asked_for == ["http://alertmanager:9093/api/v2/alerts?active=true&silenced=false&inhibited=false"]
    [alert] = found.alerts
    assert (alert.name, alert.severity, alert.labels) == ("StoreDown", "page", {"instance": "a:8000"})
    assert (alert.summary, alert.since) == ("a:8000 cannot write its store", 1_795_716_000.0)
    assert (found.watched, found.fault) == (True, "")


@pytest.mark.parametrize(
    "reply",
    [
        httpx2.Response(500),
        httpx2.Response(200, text="hello"),
        httpx2.Response(200, json=[{"labels": {"a": 1}}]),
        httpx2.Response(200, text=" " * (MOST_BYTES + 1)),
    ],
)
async def test_an_alertmanager_that_says_nothing_of_use_is_a_fault(reply: httpx2.Response) -> None:
    found = await asked(lambda _: reply)
    assert (found.watched, found.alerts) == (True, [])
    assert "in vain" in found.fault


async def test_an_alertmanager_that_is_gone_is_asked_again() -> None:
    replies: list[httpx2.Response | Exception] = [httpx2.ConnectError("no"), httpx2.Response(200, json=[FIRES])]

    def reply(request: httpx2.Request) -> httpx2.Response:
        one = replies.pop(0)
        if isinstance(one, Exception):
            raise one
        return one

    feature = AlertsFeature("http://alertmanager:9093", httpx2.MockTransport(reply))
    await feature.tick()
    assert feature.shown().fault == "Alertmanager was asked in vain (ConnectError)"
    await feature.tick()
    assert (feature.shown().fault, len(feature.shown().alerts)) == ("", 1)


async def test_without_an_alertmanager_nothing_is_known() -> None:
    feature = AlertsFeature(None)
    await feature.tick()
    assert feature.shown() == AlertsReply(watched=False, fault="", alerts=[], num_left_out=0)
