"""Does every expression of a panel, rule and alert return data from a real Prometheus that scrapes a busy server?

Usage: python -m benchmarks.monitoring_live [--model NAME] [--minutes 4] [--at-once 4] [--json OUT]

The files are those of `prolepsis monitoring`. A server with a policy, a rollout, prices, flags, a store and
replays answers clients of all kinds; an operator forces a breaker open; Prometheus scrapes each second. Then each query
of a panel and each recording is asked. An alert that does not fire has no result, so each of its series is asked
instead. Recordings that are looked back at for days and weeks are given a past: what they say now, written into
Prometheus' data with promtool.
"""

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import httpx
import promql_parser
import yaml

from benchmarks.load import MIX, Seen, Target
from benchmarks.script import options
from prolepsis.lab.measure.provenance import provenance
from prolepsis.ops.monitoring.files import RUNBOOK_URL, filled, monitoring_files, shipped, write_monitoring
from prolepsis.ops.monitoring.objectives import parse_objectives
from tests.commands import free_port, prolepsis, serving

Kind = Literal["panel", "recording", "alert"]
LONG = timedelta(days=1)
"""An offset of this or more has no data in minutes, unless it is given."""
PAST_S, STEP_S = 900, 15
"""Seconds of each past that is given, on both sides, and between its samples."""
RELOADED_S = 100.0
"""Prometheus looks for blocks each minute; recordings are evaluated after that."""
POLICY = """
version: 1
default: {mode: on}
rules:
  - name: chat
    match: {route: /v1/chat/completions}
    mode: on
    rollout: {step_weights: [50], holdout: 40, gate: automatic, min_step_s: 3600, max_step_s: 7200}
    guardrails: [{name: errors, metric: error_rate, limit: 0.9}]
"""
PRICES = "version: 1\ncurrency: EUR\nprices: [{name: cpu, per_device_hour: 1.0}]\n"
FLAGS = {"flags": {"speculation.enabled": {"state": "ENABLED", "variants": {"on": True}, "defaultVariant": "on"}}}
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
PROPOSER = "suffix"
BREAKER_CLASS = "chat-completions/standard/free/short"
"""Its breaker is forced open and closed again, in turns."""


@dataclass(frozen=True, slots=True)
class Expression:
    kind: Kind
    name: str
    """Dashboard and panel, or rule."""
    text: str


def expressions(folder: Path) -> Iterator[Expression]:
    """Yield what the written files ask."""
    for file in sorted((folder / "dashboards").glob("*.json")):
        for panel in json.loads(file.read_text())["panels"]:
            for target in panel.get("targets", ()):
                yield Expression("panel", f"{file.stem}: {panel['title']}", filled(target["expr"], "1m"))
    for file in sorted((folder / "rules").glob("*.yaml")):
        for group in yaml.safe_load(file.read_text())["groups"]:
            for rule in group["rules"]:
                kind: Kind = "recording" if "record" in rule else "alert"
                labels = {**rule.get("labels", {}), "": group["name"]}
                name = labels.get("sloth_slo") or labels.get("severity") or ""
                yield Expression(kind, f"{rule.get('record') or rule['alert']} {name}".strip(), rule["expr"])


def selectors(expression: str) -> list[Any]:
    """Return the vector selectors of an expression; the library's nodes have no common type."""
    found: list[Any] = []

    def visit(node: Any) -> bool:
        if isinstance(node, promql_parser.MatrixSelector):
            found.append(node.vector_selector)
        elif isinstance(node, promql_parser.VectorSelector):
            found.append(node)
        return True

    promql_parser.walk(promql_parser.parse(expression), visit)
    return found


def looked_back_at(every: Sequence[Expression]) -> list[tuple[str, timedelta]]:
    """Return the series with a long offset, and the offsets."""
    nodes = [node for one in every for node in selectors(one.text)]
    return sorted({(node.name, node.offset) for node in nodes if (node.offset or timedelta()) >= LONG})


class Prometheus:
    """One that runs on loopback."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=30.0)

    def ask(self, query: str) -> list[Any]:
        """Return the series of a result."""
        reply = self._http.get("/api/v1/query", params={"query": query})
        assert reply.status_code == 200, reply.text
        result: list[Any] = reply.json()["data"]["result"]
        return result

    def missing(self, expression: Expression) -> list[str]:
        """Return the queries of an expression that have no data; NaN is none."""
        queries = [expression.text]
        if expression.kind == "alert":
            queries = sorted({_last(str(node)) for node in selectors(expression.text)})
        return [query for query in queries if all(series["value"][1] == "NaN" for series in self.ask(query))]


def _last(selector: str) -> str:
    series, offset, by = selector.partition(" offset ")
    return f"last_over_time({series}[5m]{offset}{by})"


def give_past(folder: Path, prometheus: Prometheus, every: Sequence[Expression]) -> None:
    """Write what series say now as their past, into the data of a Prometheus that runs."""
    lines = []
    for name, offset in looked_back_at(every):
        for series in prometheus.ask(name):
            labels = ",".join(f'{label}="{text}"' for label, text in series["metric"].items() if label != "__name__")
            then = int(time.time() - offset.total_seconds())
            for at in range(then - PAST_S, then + PAST_S, STEP_S):
                lines.append(f"{name}{{{labels}}} {series['value'][1]} {at}")
    past = folder / "past.txt"
    past.write_text("\n".join([*lines, "# EOF\n"]))
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(past), str(folder / "data")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603


async def load(url: str, model: str, seconds: float, at_once: int) -> Seen:
    """Keep clients of all kinds busy, and act as an operator in between."""
    end, seen = time.monotonic() + seconds, Seen()
    async with httpx.AsyncClient(base_url=url, timeout=60.0) as http:
        target = Target(http, model, seen)
        mix = (*MIX, structured, late, wrong)

        async def worker(first: int) -> None:
            i = first
            while time.monotonic() < end:
                with suppress(httpx.HTTPError, OSError):
                    await mix[i % len(mix)](target, i)
                i += 1

        async with asyncio.TaskGroup() as group:
            for i in range(at_once):
                group.create_task(worker(i))
            group.create_task(operate(http, end))
    return seen


async def structured(target: Target, i: int) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}
    reply = await target.http.post("/v1/chat/completions", json=target.body(i, response_format=schema))
    target.seen.statuses[f"structured {reply.status_code}"] += 1


async def late(target: Target, i: int) -> None:
    """Ask for more than the time allows."""
    headers = {"x-request-timeout-ms": "150"}
    reply = await target.http.post("/v1/chat/completions", json=target.body(i, max_tokens=400), headers=headers)
    target.seen.statuses[f"late {reply.status_code}"] += 1


async def wrong(target: Target, i: int) -> None:
    reply = await target.http.post("/v1/completions", json={"model": target.model, "prompt": "a", "max_tokens": -i})
    target.seen.statuses[f"wrong {reply.status_code}"] += 1


async def operate(http: httpx.AsyncClient, end: float) -> None:
    """Force a breaker open and closed in turns."""
    states = ("forced_open", "closed")
    for i in range(10**6):
        if time.monotonic() > end:
            return
        body = {"proposer": PROPOSER, "traffic_class": BREAKER_CLASS, "state": states[i % 2]}
        reply = await http.put("/admin/health", json=body)
        assert reply.status_code == 200, reply.text
        await asyncio.sleep(5.0)


def serve_command(folder: Path, model: str, port: int) -> list[str]:
    """Write what a server with everything reads, and return its command."""
    (folder / "policy.yaml").write_text(POLICY)
    (folder / "prices.yaml").write_text(PRICES)
    (folder / "flags.json").write_text(json.dumps(FLAGS))
    settings = {
        "port": port,
        "store": f"sqlite:///{folder / 'store.sqlite'}",
        "replay-sample": 1.0,
        "region": "local",
        **{name: folder / f"{name}.yaml" for name in ("policy", "prices")},
        "controls-file": folder / "controls.json",
        "audit-key": folder / "audit-key.pem",
        "flags": folder / "flags.json",
    }
    options = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
    return prolepsis("serve", "--model", model, *options)


def prometheus_command(folder: Path, port: int, server: int) -> list[str]:
    """Write the shipped configuration with our targets and short intervals, and return the command."""
    config = yaml.safe_load((folder / "prometheus.yaml").read_text())
    config["global"] |= {"scrape_interval": "1s", "evaluation_interval": "5s"}
    config["scrape_configs"][0]["static_configs"] = [{"targets": [f"127.0.0.1:{server}"]}]
    del config["alerting"]
    (folder / "live.yaml").write_text(yaml.safe_dump(config))
    options = {
        "config.file": folder / "live.yaml",
        "storage.tsdb.path": folder / "data",
        "storage.tsdb.retention.time": "35d",
    }
    listen = f"--web.listen-address=127.0.0.1:{port}"
    return ["prometheus", listen, *(f"--{name}={value}" for name, value in options.items())]


def measure(args: argparse.Namespace, folder: Path) -> Mapping[Expression, list[str]]:
    """Return for each expression which of its queries have no data."""
    objectives = parse_objectives(shipped("slos.yaml"), "slos.yaml")
    write_monitoring(folder, monitoring_files(objectives, RUNBOOK_URL))
    every = list(dict.fromkeys(expressions(folder)))
    server, port = free_port(), free_port()
    url, asked = f"http://127.0.0.1:{server}", f"http://127.0.0.1:{port}"
    with (
        serving(serve_command(folder, args.model, server), f"{url}/health/ready", folder / "server.log"),
        serving(prometheus_command(folder, port, server), f"{asked}/-/ready", folder / "prometheus.log"),
    ):
        prometheus = Prometheus(asked)
        seen = asyncio.run(load(url, args.model, 60.0 * args.minutes, args.at_once))
        give_past(folder, prometheus, every)
        later = asyncio.run(load(url, args.model, RELOADED_S, args.at_once))
        print("answers by status:", dict(seen.statuses + later.statuses))
        return {one: prometheus.missing(one) for one in every}


def report(found: Mapping[Expression, list[str]]) -> None:
    print(f"{'':<12}{'asked':>8}{'data':>8}{'none':>8}")
    for kind in ("panel", "recording", "alert"):
        results = [missing for one, missing in found.items() if one.kind == kind]
        with_data = sum(not missing for missing in results)
        print(f"{kind:<12}{len(results):>8}{with_data:>8}{len(results) - with_data:>8}")
    for one, missing in found.items():
        for query in missing:
            print(f"no data: {one.kind} {one.name}: {query}")


def main() -> None:
    args = options(__doc__, model="smollm2-135m-instruct", minutes=4.0, at_once=4)
    if shutil.which("prometheus") is None:
        sys.exit("prometheus is missing: apt-get install prometheus")
    with TemporaryDirectory() as folder:
        found = measure(args, Path(folder))
    report(found)
    if args.json:
        rows = [{"kind": one.kind, "name": one.name, "expr": one.text, "missing": m} for one, m in found.items()]
        args.json.write_text(json.dumps({"provenance": provenance({}, {}), "expressions": rows}, indent=2))
    sys.exit(any(found.values()))


if __name__ == "__main__":
    main()
