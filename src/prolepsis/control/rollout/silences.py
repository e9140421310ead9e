"""Silences in Alertmanager: tickets about acceptance are muted while a stage of a rollout changes it."""

import asyncio
import re
import socket
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import quote
from uuid import uuid4

import httpx2
import structlog
from prometheus_client import CollectorRegistry
from pydantic import BaseModel, Field, TypeAdapter

from prolepsis.control.rollout.live import LiveRollout
from prolepsis.control.rollout.machine import Kind, RolloutEvent
from prolepsis.control.store.controls import Control, ControlTable, control_key
from prolepsis.control.web.feature import Feature
from prolepsis.control.web.skipped import Skipped
from prolepsis.core.audit_event import SERVER, AuditEvent, Emit
from prolepsis.core.bounded_replies import PLAIN, async_hooks
from prolepsis.core.errors import ConfigError, StoreUnavailable
from prolepsis.core.network import address, without_user
from prolepsis.core.telemetry.declare import counter

OFF = "none"
MUTED: Mapping[str, str] = {"cause": "acceptance", "severity": "ticket"}
"""Labels of the alerts that a stage explains. Pages always get through."""
BEGINS: frozenset[Kind] = frozenset({"started", "promoted", "resumed"})
"""Changes that begin a stage. All others end it, and with it the silence."""
MOST_S = 4 * 3600.0  # longest silence: a stage that has no judgement by then deserves a look
TRIES = 5
TIMEOUT_S = 5.0
_PATH = "api/v2/silence"

_KEY = control_key("deployment", "id")
_ADDED = frozenset({"model", "region"})
"""Labels that no rule of ours gives an alert: Prometheus adds them to all of its own, or to none."""
_SPECIAL = r"([.+*?()|\[\]{}^$\\])"
"""Characters that are quoted for RE2, which refuses the quotes of some others that Python quotes."""

log = structlog.get_logger(__name__)


class Posted(BaseModel):
    """A silence as Alertmanager returns it; its other fields do not matter here."""

    id: str
    created_by: str = Field(alias="createdBy")
    status: Mapping[str, str]


class Created(BaseModel):
    """Alertmanager's reply to a new silence."""

    id: str = Field(alias="silenceID")


_LISTED = TypeAdapter(list[Posted])


@dataclass(slots=True)
class _Due:
    """A change that was not sent to Alertmanager yet."""

    rollout: LiveRollout
    event: RolloutEvent
    tries_left: int = TRIES

    @property
    def is_over(self) -> bool:
        """Whether another change followed, here or on another replica."""
        return self.rollout.state.version != self.event.version


class Silences(Feature):
    """Posts one silence for each stage of a rollout and expires it when the stage ends. Belongs to one event loop.

    The replica that makes a change calls Alertmanager. It finds the silences of the rollout by their author, so that
    it can expire those of other replicas and of its own earlier start, and none of another deployment.
    """

    name = "silences"
    period_s = 2.0

    def __init__(
        self,
        url: str,
        registry: CollectorRegistry,
        *,
        emit: Emit,
        deployment: Callable[[], str],
        labels: Callable[[], Mapping[str, Collection[str]]] = dict,
        clock: Callable[[], float] = time.time,
        skipped: Skipped | None = None,
    ) -> None:
        """`deployment`: name of the servers that share these rollouts; it may raise `StoreUnavailable`.

        `labels`: those of their alerts, with the values that are theirs. Both may block: they run in a thread of their
        own. `clock`: Unix time. Raises `ConfigError` for an invalid address.
        """
        check_alertmanager(url)
        self._url = url
        self._tls = httpx2.create_ssl_context()  # takes milliseconds, which the event loop must not wait for later
        self._emit = emit
        self._clock = clock
        self._deployment = deployment
        self._labels = labels
        self._skipped = skipped or Skipped()
        self._due: dict[str, _Due] = {}  # by rollout: the last change that was made here
        text = "Silences of rollouts in Alertmanager: posted, expired, failed (given up)"
        self._results = counter(registry, "rollout_silences", text, "result")
        for result in ("posted", "expired", "failed"):
            self._results.labels(result)

    def on_change(self, rollout: LiveRollout, event: RolloutEvent) -> None:
        """Note a change that was made here; the next tick sends it to Alertmanager."""
        self._due[event.rollout_id] = _Due(rollout, event)

    async def tick(self) -> None:
        """Send Alertmanager what is due; failures are retried at the next ticks."""
        for rollout_id in self._skipped.due(self.name, self._due, str):
            with self._skipped.contained(self.name, rollout_id, self._due[rollout_id].rollout.target.rule):
                due = self._due[rollout_id]
                is_done = due.is_over or await self._sent(due)
                if is_done and self._due.get(rollout_id) is due:  # no other change came meanwhile
                    del self._due[rollout_id]

    async def close(self) -> None:
        """Send what is due, within the time of one call: a stop does not wait for an Alertmanager that hangs."""
        with suppress(TimeoutError):
            async with asyncio.timeout(TIMEOUT_S):
                await self.tick()

    async def _sent(self, due: _Due) -> bool:
        """Send a change; return whether it arrived or was given up."""
        try:
            author = author_of(await asyncio.to_thread(self._deployment), due.event.rollout_id)
            async with httpx2.AsyncClient(
                base_url=self._url, verify=self._tls, timeout=TIMEOUT_S, headers=PLAIN, event_hooks=async_hooks()
            ) as http:
                await self._expire(http, due.event, author)
                if due.event.kind in BEGINS:
                    await self._post(http, due, author)
        except (httpx2.HTTPError, ValueError, StoreUnavailable) as error:  # contained: a rollout continues without
            due.tries_left -= 1
            status = error.response.status_code if isinstance(error, httpx2.HTTPStatusError) else None
            log.warning(
                "rollout_not_silenced",
                rollout=due.event.rollout_id,
                error=type(error).__name__,
                status=status,
                tries_left=due.tries_left,
            )
            if not due.tries_left:
                self._results.labels("failed").inc()
            return not due.tries_left
        return True

    async def _expire(self, http: httpx2.AsyncClient, event: RolloutEvent, author: str) -> None:
        """End the silences of the rollout, whichever replica posted them."""
        query = {"filter": [f'{label}="{value}"' for label, value in MUTED.items()]}
        reply = await http.get(f"{_PATH}s", params=query)
        for posted in _LISTED.validate_json(reply.raise_for_status().content):
            if posted.created_by == author and posted.status.get("state") != "expired":
                (await http.delete(f"{_PATH}/{quote(posted.id, safe='')}")).raise_for_status()
                self._results.labels("expired").inc()
                self._record("rollout.silence_expired", event, {"silence": posted.id, "because": event.kind})

    async def _post(self, http: httpx2.AsyncClient, due: _Due, author: str) -> None:
        labels = {**await asyncio.to_thread(self._labels), "rule": [due.rollout.target.rule]}
        silence = silence_of(due.rollout, self._clock(), author, labels)
        reply = await http.post(f"{_PATH}s", json=silence)
        created = Created.model_validate_json(reply.raise_for_status().content)
        self._results.labels("posted").inc()
        self._record("rollout.silenced", due.event, {"silence": created.id, **silence})

    def _record(self, action: str, event: RolloutEvent, after: Mapping[str, object]) -> None:
        versions = {"policy": event.policy_version}
        self._emit(AuditEvent(actor=SERVER, action=action, subject=event.rollout_id, after=after, versions=versions))


def silence_of(
    rollout: LiveRollout, now: float, author: str, labels: Mapping[str, Collection[str]]
) -> dict[str, object]:
    """Return the silence of the present stage in Alertmanager's format; it begins `now` (Unix time).

    It mutes alerts with `labels`, by the values of each. An alert over several servers or rules lacks some of them, and
    is not muted.
    """
    state, target = rollout.state, rollout.target
    stage = target.settings.stages[state.stage]
    matchers = [{"name": label, "value": value, "isRegex": False, "isEqual": True} for label, value in MUTED.items()]
    return {
        "matchers": [*matchers, *matchers_of(labels)],
        "startsAt": _written(now),
        "endsAt": _written(now + min(stage.maximum_s, MOST_S)),
        "createdBy": author,
        "comment": f"rollout of rule {target.rule}, stage {stage.name}, policy {state.policy_version}",
    }


def author_of(deployment: str, rollout_id: str) -> str:
    """Return the author of a rollout's silences, by which they are found.

    Deployments of one policy and model have rollouts of the same name.
    """
    return f"prolepsis {deployment} rollout {rollout_id}"


def deployment_id(table: ControlTable) -> str:
    """Return the name of the deployment in its store, made by the first server that asks; raises `StoreUnavailable`."""
    control = table.read().get(_KEY)
    if control is None:
        first_wins = -time.time()  # of two that make one at once, the earlier has the larger number
        control = table.exchange({_KEY: Control(uuid4().hex[:12], first_wins)})[_KEY]
    assert control.value is not None, "nothing removes it"
    return control.value


def instances_of(addresses: Collection[str]) -> list[str]:
    """Return what Prometheus may call servers at these URLs: HOST:PORT, of this machine by its other names too."""
    names: set[str] = set()
    for url in addresses:
        host, _, port = url.partition("://")[2].rpartition(":")
        hosts = {host.strip("[]")}
        if host == socket.gethostname():
            hosts |= {"127.0.0.1", "localhost", socket.getfqdn(), *_numbers(host)}
        names |= {f"[{name}]:{port}" if ":" in name else f"{name}:{port}" for name in hosts}
    return sorted(names)


def _numbers(host: str) -> set[str]:
    try:
        return {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
    except OSError:
        return set()


def matchers_of(labels: Mapping[str, Collection[str]]) -> list[dict[str, object]]:
    """Return Alertmanager's matchers of alerts that have one of these values in each label.

    A label without a value is not matched: Prometheus may add one of its own. Those of `_ADDED` may also be missing.
    """
    matchers: list[dict[str, object]] = []
    for name, values in labels.items():
        if any(values):
            any_of = "|".join(re.sub(_SPECIAL, r"\\\1", value) for value in sorted(values))
            value = f"({any_of}){'?' if name in _ADDED else ''}"
            matchers.append({"name": name, "value": value, "isRegex": True, "isEqual": True})
    return matchers


def check_alertmanager(url: str) -> None:
    """Raise `ConfigError` for an invalid address."""
    if url != OFF and address(url) is None:
        shown = without_user(url)[:80]
        message = f"alertmanager is {shown!r}; allowed: an http(s) URL such as http://127.0.0.1:9093, or none"
        raise ConfigError(message, param="alertmanager")


def _written(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
