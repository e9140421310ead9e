"""Alerts that fire, as the Alertmanager that `alertmanager` names has them, at /admin/alerts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import httpx2
import structlog
from pydantic import BaseModel, Field, TypeAdapter

from prolepsis.control.web.context import Context
from prolepsis.control.web.feature import Feature
from prolepsis.control.web.routes import READERS, shown
from prolepsis.core.bounded_replies import PLAIN, async_hooks

MOST_BYTES = 4 << 20  # of Alertmanager's reply
MOST_ALERTS = 100
TIMEOUT_S = 5.0
_PATH = "api/v2/alerts"
_SHOWN = {"active": "true", "silenced": "false", "inhibited": "false"}

log = structlog.get_logger(__name__)


class _Alert(BaseModel):
    """An alert as Alertmanager returns it; its other fields do not matter here."""

    labels: dict[str, str]
    annotations: dict[str, str] = {}
    starts_at: datetime = Field(alias="startsAt")


_LISTED = TypeAdapter(list[_Alert])


@dataclass(frozen=True, slots=True, kw_only=True)
class FiringAlert:
    """An alert that fires and is neither silenced nor muted by another."""

    name: str
    severity: str
    summary: str
    labels: dict[str, str]  # the others
    since: float  # Unix time


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertsReply:
    watched: bool  # an Alertmanager is named
    fault: str  # why its alerts are not known; empty: they are
    alerts: list[FiringAlert]  # the first that fired first
    num_left_out: int


class AlertsFeature(Feature):
    """Belongs to one event loop. Without an Alertmanager it knows nothing, and says so."""

    name = "alerts"
    period_s = 10.0

    def __init__(self, url: str | None, transport: httpx2.AsyncBaseTransport | None = None) -> None:
        """`url`: of Alertmanager; None: there is none. `transport`: in place of the network."""
        self.routes = shown("/admin/alerts", READERS, "Alerts that fire, by the Alertmanager that is named", self.shown)
        self._url = url
        self._transport = transport
        self._tls = httpx2.create_ssl_context() if url else False
        self._fault = "not asked yet" if url else ""
        self._alerts: Sequence[FiringAlert] = ()

    async def tick(self) -> None:
        """Ask which alerts fire."""
        if self._url is None:
            return
        before = self._fault
        try:
            self._alerts, self._fault = await self._asked(self._url), ""
        except (httpx2.HTTPError, ValueError) as error:  # contained: the pages say that alerts are not known
            self._alerts, self._fault = (), f"Alertmanager was asked in vain ({type(error).__name__})"
        if self._fault != before:
            log.info("alerts_known") if not self._fault else log.warning("alerts_not_known", error=self._fault)

    async def _asked(self, url: str) -> list[FiringAlert]:
        async with httpx2.AsyncClient(
            base_url=url,
            verify=self._tls,
            timeout=TIMEOUT_S,
            transport=self._transport,
            headers=PLAIN,
            event_hooks=async_hooks(MOST_BYTES),
        ) as http:
            reply = await http.get(_PATH, params=_SHOWN)
        return sorted(map(_firing, _LISTED.validate_json(reply.raise_for_status().content)), key=lambda row: row.since)

    def shown(self) -> AlertsReply:
        shown = list(self._alerts[:MOST_ALERTS])
        return AlertsReply(
            watched=self._url is not None, fault=self._fault, alerts=shown, num_left_out=len(self._alerts) - len(shown)
        )


def _firing(alert: _Alert) -> FiringAlert:
    labels: Mapping[str, str] = alert.labels
    return FiringAlert(
        name=labels.get("alertname", ""),
        severity=labels.get("severity", ""),
        summary=alert.annotations.get("summary", ""),
        labels={name: value for name, value in labels.items() if name not in ("alertname", "severity")},
        since=alert.starts_at.timestamp(),
    )


def feature(context: Context) -> Feature:
    url = context.config.alertmanager
    return AlertsFeature(None if url == "none" else url)
