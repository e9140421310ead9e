"""A server under load that is killed: what it reported as written is counted against what the database holds."""

import asyncio
import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Protocol

import httpx2

from prolepsis.control.audit import chain
from prolepsis.control.audit.verify import Anchor, ChainEvidence, verify
from prolepsis.control.store import records
from prolepsis.control.store.database import Database, store_url
from tests.commands import free_port

AT_ONCE = 8
StoreCounts = dict[str, dict[str, int]]
"""What readiness reports of the store: written and dropped, by kind."""


class Killable(Protocol):
    """A process."""

    def kill(self) -> None: ...

    def wait(self) -> int | None: ...


def killed_under_load(
    start: Callable[[int], Killable], setting: str, seconds: float, num_answers: int = 1
) -> dict[str, int]:
    """Start a server on a port and on the store `setting`; kill it under load, and count.

    The load lasts `seconds` at least, and until so many answers have come and some items are written.
    """
    before = stored(setting)
    port = free_port()
    running = start(port)
    try:
        counts, answered = asyncio.run(_asked(f"http://127.0.0.1:{port}", running, seconds, num_answers))
    finally:
        running.kill()
        running.wait()
    after = stored(setting)
    num_records, num_entries = after[0] - before[0], after[1] - before[1]
    written, dropped = counts["written"], counts["dropped"]
    return {
        "answered": answered,
        "written": sum(written.values()),
        "records_lost": max(0, written.get("request", 0) - num_records),
        "entries_lost": max(0, written.get("audit", 0) - num_entries),
        "faults_of_the_chain": after[2],
        "dropped": sum(dropped.values()),
        "waiting": answered - num_records,
    }


async def _asked(url: str, running: Killable, seconds: float, num_answers: int) -> tuple[StoreCounts, int]:
    async with httpx2.AsyncClient(base_url=url, timeout=30) as http:
        return await _load(http, await _model(http), running, seconds, num_answers)


async def _load(
    http: httpx2.AsyncClient, model: str, running: Killable, seconds: float, num_answers: int
) -> tuple[StoreCounts, int]:
    """Return what readiness reported last before the kill, and how many answers had come by then."""
    answered = 0
    counts: StoreCounts = {"written": {}, "dropped": {}}
    end = time.monotonic() + seconds

    async def ask(number: int) -> None:
        nonlocal answered
        body = {"model": model, "prompt": f"Item {number}:", "max_tokens": 8, "ignore_eos": True}
        while True:
            reply = await http.post("/v1/completions", json=body)
            answered += reply.status_code == 200

    async def watch() -> None:
        nonlocal counts
        while True:
            counts = (await http.get("/health/ready")).json()["store"]
            enough = answered >= num_answers and sum(counts["written"].values()) > 0
            if time.monotonic() >= (end if enough else end + 60):
                running.kill()
                return
            await asyncio.sleep(0.01)

    asking = [asyncio.ensure_future(ask(number)) for number in range(AT_ONCE)]
    await watch()
    with suppress(httpx2.HTTPError):
        await asyncio.gather(*asking)
    for task in asking:
        task.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    return counts, answered


async def _model(http: httpx2.AsyncClient) -> str:
    """Return the name of the model once it is served."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        with suppress(httpx2.HTTPError):
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
        verified = verify(chain.entries(connection), ChainEvidence(head=Anchor(*chain.head(connection))))
        return records.count(connection), verified.num_entries, len(verified.faults)
