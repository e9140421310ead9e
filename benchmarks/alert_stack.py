"""A Prometheus and an Alertmanager with the files of `prolepsis monitoring`, and what they do about alerts.

Three things differ from the shipped files: addresses, the intervals of scrapes and evaluations, and the receivers'
webhooks, which lead to the receiver here.
"""

import asyncio
import json
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import yaml

from tests.commands import free_port, prolepsis, serving

LOOK_EVERY_S = 0.5
AlertName = tuple[str, str]
"""Name and severity."""


@dataclass(slots=True)
class Fate:
    """What became of an alert, over all its series. Times in seconds of the monotonic clock; None: never."""

    pending: float | None = None
    firing: float | None = None
    ended: float | None = None
    notified: float | None = None
    receiver: str = ""
    suppressed_by: set[str] = field(default_factory=set)
    """Alerts that inhibit it, or the comment of a silence."""
    labels: set[str] = field(default_factory=set)
    """What tells its series apart."""


@dataclass(slots=True)
class Fates:
    """Of each alert, as they are seen."""

    all: dict[AlertName, Fate] = field(default_factory=dict)

    def of(self, labels: Mapping[str, str]) -> Fate:
        fate = self.all.setdefault((labels["alertname"], labels["severity"]), Fate())
        told_apart = {name: value for name, value in labels.items() if name not in _COMMON}
        fate.labels.add(" ".join(f"{name}={value}" for name, value in sorted(told_apart.items())))
        return fate


_COMMON = ("alertname", "severity", "cause", "region", "sloth_service", "sloth_slo", "sloth_id", "owner")


@dataclass(frozen=True, slots=True)
class Stack:
    """Both servers while they run."""

    prometheus: str
    """Its address, and so is the next one."""
    alertmanager: str
    fates: Fates

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[Fates]:
        """Look at both while the block runs."""
        async with httpx.AsyncClient(timeout=10.0) as http:
            watching = asyncio.create_task(self._watch(http))
            try:
                yield self.fates
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)

    async def _watch(self, http: httpx.AsyncClient) -> None:
        while True:
            reply = await http.get(f"{self.prometheus}/api/v1/alerts")
            self._see_rules(reply.raise_for_status().json()["data"]["alerts"])
            reply = await http.get(f"{self.alertmanager}/api/v2/alerts")
            silences = await http.get(f"{self.alertmanager}/api/v2/silences")
            self._see_suppressed(reply.raise_for_status().json(), silences.raise_for_status().json())
            await asyncio.sleep(LOOK_EVERY_S)

    def _see_rules(self, alerts: list[dict[str, Any]]) -> None:
        now, active = time.monotonic(), set[AlertName]()
        for alert in alerts:
            fate = self.fates.of(alert["labels"])
            active.add((alert["labels"]["alertname"], alert["labels"]["severity"]))
            if alert["state"] == "firing":
                fate.firing, fate.ended = fate.firing or now, None
            elif fate.firing is None:
                fate.pending = fate.pending or now
        for name, fate in self.fates.all.items():
            if name not in active and fate.firing is not None and fate.ended is None:
                fate.ended = now

    def _see_suppressed(self, alerts: list[dict[str, Any]], silences: list[dict[str, Any]]) -> None:
        names = {alert["fingerprint"]: alert["labels"]["alertname"] for alert in alerts}
        comments = {silence["id"]: silence["comment"] for silence in silences}
        for alert in alerts:
            status, fate = alert["status"], self.fates.of(alert["labels"])
            fate.suppressed_by |= {names.get(source, source) for source in status["inhibitedBy"]}
            fate.suppressed_by |= {f"silence: {comments.get(one, one)}" for one in status["silencedBy"]}


@contextmanager
def running_stack(folder: Path, server: int, alertmanager_port: int, every_s: float) -> Iterator[Stack]:
    """Run both for the server on port `server`, with scrapes and evaluations each `every_s` seconds."""
    subprocess.run(prolepsis("monitoring", str(folder)), check=True, capture_output=True)  # noqa: S603
    ports, fates = (free_port(), alertmanager_port), Fates()
    prometheus, alertmanager = (f"http://127.0.0.1:{port}" for port in ports)
    with ExitStack() as stack:
        receiver = stack.enter_context(_receiver(fates))
        told = _alertmanager_command(folder, ports[1], receiver)
        stack.enter_context(serving(told, f"{alertmanager}/-/ready", folder / "alertmanager.log"))
        asked = _prometheus_command(folder, ports, server, every_s)
        stack.enter_context(serving(asked, f"{prometheus}/-/ready", folder / "prometheus.log"))
        yield Stack(prometheus, alertmanager, fates)


def _alertmanager_command(folder: Path, port: int, receiver: int) -> list[str]:
    text = (folder / "alertmanager.yaml").read_text().replace("127.0.0.1:9999", f"127.0.0.1:{receiver}")
    (folder / "alertmanager-live.yaml").write_text(text)
    options = {
        "config.file": folder / "alertmanager-live.yaml",
        "storage.path": folder / "alertmanager",
        "web.listen-address": f"127.0.0.1:{port}",
        "cluster.listen-address": "",
    }
    return ["prometheus-alertmanager", *(f"--{name}={value}" for name, value in options.items())]


def _prometheus_command(folder: Path, ports: tuple[int, int], server: int, every_s: float) -> list[str]:
    config = yaml.safe_load((folder / "prometheus.yaml").read_text())
    config["global"] |= {"scrape_interval": f"{every_s:g}s", "evaluation_interval": f"{every_s:g}s"}
    config["scrape_configs"][0]["static_configs"] = [{"targets": [f"127.0.0.1:{server}"]}]
    config["alerting"]["alertmanagers"] = [{"static_configs": [{"targets": [f"127.0.0.1:{ports[1]}"]}]}]
    (folder / "prometheus-live.yaml").write_text(yaml.safe_dump(config))
    options = {
        "config.file": folder / "prometheus-live.yaml",
        "storage.tsdb.path": folder / "prometheus",
        "web.listen-address": f"127.0.0.1:{ports[0]}",
    }
    return ["prometheus", *(f"--{name}={value}" for name, value in options.items())]


@contextmanager
def _receiver(fates: Fates) -> Iterator[int]:
    """Take Alertmanager's notifications on a port of loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            for alert in body["alerts"]:
                fate = fates.of(alert["labels"])
                if alert["status"] == "firing" and fate.notified is None:
                    fate.notified, fate.receiver = time.monotonic(), body["receiver"]
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield int(server.server_port)
        finally:
            server.shutdown()
            thread.join()
