"""What is lost when a server under load is killed: request records and audit entries that it had called written.

Usage: python -m benchmarks.control_crash [--repeats 3] [--store URL] [--seconds 4] [--json OUT]

`prolepsis serve` with the default model, every request in the audit log, 8 requests at once. Readiness says all along
what is written and what was dropped; then kill -9. Lost is what was called written and is not in the database, or does
not verify. `waiting` are answers that clients had and the database has not: they stood in the queue, neither called
written nor counted as dropped. Without --store each repeat has a SQLite file of its own.
"""

import argparse
import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from benchmarks.control_rollouts import shown
from prolepsis.audit import chain
from prolepsis.audit.verify import Anchor, verify
from prolepsis.cli.bench.provenance import provenance
from prolepsis.store import records
from prolepsis.store.database import Database, store_url

AT_ONCE = 8
Said = dict[str, dict[str, int]]
"""What readiness says of the store: written and dropped, by kind."""
SERVE = [
    "-c",
    "from prolepsis.cli.main import app; app()",
    "serve",
    "--audit-sample",
    "1",
    "--replay-sample",
    "0",
    "--log-level",
    "error",
]


def one(command: Sequence[str], setting: str, seconds: float) -> dict[str, int]:
    """Start a server by `command`, ended by its port, on the store `setting`; kill it under load, and count."""
    before = stored(setting)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = int(taken.getsockname()[1])
    running = subprocess.Popen([*command, str(port)])  # noqa: S603
    try:
        said, answered = asyncio.run(_asked(f"http://127.0.0.1:{port}", running, seconds))
    finally:
        running.kill()
        running.wait()
    after = stored(setting)
    num_records, num_entries = after[0] - before[0], after[1] - before[1]
    written, dropped = said["written"], said["dropped"]
    return {
        "answered": answered,
        "written": sum(written.values()),
        "records_lost": max(0, written.get("request", 0) - num_records),
        "entries_lost": max(0, written.get("audit", 0) - num_entries),
        "faults_of_the_chain": after[2],
        "dropped": sum(dropped.values()),
        "waiting": answered - num_records,
    }


async def _asked(url: str, running: subprocess.Popen[bytes], seconds: float) -> tuple[Said, int]:
    async with httpx.AsyncClient(base_url=url, timeout=30) as http:
        return await _load(http, await _model(http), running, seconds)


async def _load(
    http: httpx.AsyncClient, model: str, running: subprocess.Popen[bytes], seconds: float
) -> tuple[Said, int]:
    """Return what readiness said last before the kill, and how many answers had come by then."""
    answered = 0
    said: Said = {"written": {}, "dropped": {}}
    end = time.monotonic() + seconds

    async def ask(number: int) -> None:
        nonlocal answered
        body = {"model": model, "prompt": f"Item {number}:", "max_tokens": 8, "ignore_eos": True}
        while True:
            reply = await http.post("/v1/completions", json=body)
            answered += reply.status_code == 200

    async def watch() -> None:
        nonlocal said
        while True:
            said = (await http.get("/health/ready")).json()["store"]
            if time.monotonic() >= end:
                running.send_signal(signal.SIGKILL)
                return
            await asyncio.sleep(0.01)

    asking = [asyncio.ensure_future(ask(number)) for number in range(AT_ONCE)]
    await watch()
    with suppress(httpx.HTTPError):
        await asyncio.gather(*asking)
    for task in asking:
        task.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    return said, answered


async def _model(http: httpx.AsyncClient) -> str:
    """Return the name of the model once it is served."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        with suppress(httpx.HTTPError):
            ready = (await http.get("/health/ready")).json()
            if ready["ready"]:
                return str(ready["model"])
        await asyncio.sleep(0.1)
    raise RuntimeError("the server was not ready within 120 s")


def stored(setting: str) -> tuple[int, int, int]:
    """Return records, audit entries and faults of the chain; nothing of a database that is not there yet."""
    url = store_url(setting)
    assert url is not None, "there is a store"
    database = Database(url)
    if database.file is not None and not database.file.exists():
        return 0, 0, 0
    with closing(database), database.read() as connection:
        verified = verify(chain.entries(connection), head=Anchor(*chain.head(connection)))
        return records.count(connection), verified.num_entries, len(verified.faults)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--store", help="a database whose schema is there already, instead of files")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found: dict[str, list[int]] = {}
    with TemporaryDirectory() as folder:
        for i in range(args.repeats):
            setting = args.store or f"sqlite:///{folder}/{i}.sqlite"
            command = [sys.executable, *SERVE, "--store", setting, "--port"]
            for name, value in one(command, setting, args.seconds).items():
                found.setdefault(name, []).append(value)
    for name, figures in found.items():
        print(f"{name:<22} {shown(figures)}")
    if args.json:
        args.json.write_text(json.dumps({"provenance": provenance({}, {}), "figures": found}, indent=2))
    sys.exit(any(map(sum, (found[name] for name in ("records_lost", "entries_lost", "faults_of_the_chain")))))


if __name__ == "__main__":
    main()
