"""Does a batch keep each line once when its server is killed, and what do others notice of it?

Usage: python -m benchmarks.batch_kills [--lines 2000] [--kills 3] [--rate 5] [--quiet-s 40] [--seed 0] [--json OUT]

`prolepsis serve` with the default model runs a batch of short chats, half of them sampled. It is killed with -9 at
random points of the batch and started again. Beside it come `--rate` interactive chats a second, in an open loop: late
answers do not hold back the next request. The same load goes to the same server without a batch before the batch, after
each kill (with an empty store), and after the batch, for `--quiet-s` each; so both kinds of phases alternate.

Counted are lines with no result, with more than one, and with an error; and how many of every 20th line differ from the
answer that the line's request gets alone, afterwards. Latencies are those of whole answers; the first `WARM_S` of each
phase, and what a kill cuts off, do not count. The status is 1 where a line is lost, doubled, failed or different.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from prolepsis.control.statistics.percentile import percentile
from prolepsis.core.config import DEFAULT_MODEL
from prolepsis.lab.bench.provenance import provenance
from tests.commands import free_port, prolepsis, serving

WARM_S = 5.0
STEP = 20
"""Of the lines that are compared."""
LIMIT_S = 1800.0
"""A batch that takes longer is given up."""
SERVE = prolepsis("serve", "--replay-sample", "0", "--log-level", "error")
SUBJECTS = ("rivers", "cities", "metals", "birds")
CHATS = "/v1/chat/completions"


@dataclass(slots=True)
class Phase:
    name: str
    seconds: list[float] = field(default_factory=list)
    """Of the answers that count."""
    num_refused: int = 0


def line(number: int, tokens: int) -> dict[str, Any]:
    """Return a line of the batch; those of one subject begin alike."""
    subject = SUBJECTS[number % len(SUBJECTS)]
    messages = [
        {"role": "system", "content": f"You answer questions about {subject} in a few words, and say nothing else."},
        {"role": "user", "content": f"Question {number}: name one of the {subject} that you know, and say why."},
    ]
    sampling = {"temperature": 0.8 * (number // len(SUBJECTS) % 2), "seed": number}
    body = {"model": DEFAULT_MODEL, "messages": messages, "max_tokens": tokens, **sampling}
    return {"custom_id": f"{number}", "method": "POST", "url": CHATS, "body": body}


def interactive(number: int) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"I have {number} apples and eat one. What now?"}]
    return {"model": DEFAULT_MODEL, "messages": messages, "max_tokens": 48, "seed": number}


class Load:
    """Sends interactive requests at a steady rate, whatever becomes of them."""

    def __init__(self, http: httpx.AsyncClient, rate: float) -> None:
        self.phases: list[Phase] = []
        self._http = http
        self._rate = rate
        self._number = 0

    @asynccontextmanager
    async def running(self, name: str) -> AsyncIterator[None]:
        """Send requests while the block runs; what is under way at its end does not count."""
        phase = Phase(name)
        self.phases.append(phase)
        asking = asyncio.create_task(self._run(phase))
        try:
            yield
        finally:
            asking.cancel()
            with suppress(asyncio.CancelledError):
                await asking

    async def _run(self, phase: Phase) -> None:
        begun = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number in range(10**9):
                await asyncio.sleep(max(0.0, begun + number / self._rate - time.monotonic()))
                group.create_task(self._ask(phase, counts=time.monotonic() > begun + WARM_S))

    async def _ask(self, phase: Phase, *, counts: bool) -> None:
        self._number += 1
        begun = time.monotonic()
        with suppress(httpx.TransportError):  # the server is gone
            reply = await self._http.post(CHATS, json=interactive(self._number))
            phase.num_refused += reply.status_code != httpx.codes.OK
            if counts and reply.status_code == httpx.codes.OK:
                phase.seconds.append(time.monotonic() - begun)


async def create(http: httpx.AsyncClient, lines: Sequence[dict[str, Any]]) -> str:
    content = "".join(f"{json.dumps(one)}\n" for one in lines).encode()
    files, form = {"file": ("lines.jsonl", content)}, {"purpose": "batch"}
    file = (await http.post("/v1/files", files=files, data=form)).raise_for_status().json()
    body = {"input_file_id": file["id"], "endpoint": CHATS, "completion_window": "24h"}
    return str((await http.post("/v1/batches", json=body)).raise_for_status().json()["id"])


async def reached(http: httpx.AsyncClient, batch: str, number: float) -> dict[str, Any]:
    """Wait until so many lines have run, or the batch has ended; return the batch."""
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        found: dict[str, Any] = (await http.get(f"/v1/batches/{batch}")).raise_for_status().json()
        counts = found["request_counts"]
        if found["status"] not in ("validating", "in_progress", "finalizing"):
            return found
        if counts["completed"] + counts["failed"] >= number:
            return found
        await asyncio.sleep(0.1)
    raise TimeoutError(f"{batch} did not reach {number:g} lines in {LIMIT_S:g} s: {found}")


async def results(http: httpx.AsyncClient, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    reply = (await http.get(f"/v1/files/{file_id}/content")).raise_for_status()
    return [json.loads(one) for one in reply.text.split("\n") if one]


async def differing(http: httpx.AsyncClient, lines: Sequence[dict[str, Any]], answers: Sequence[dict[str, Any]]) -> int:
    """Return how many answers are not those that their requests get alone."""
    choices = {one["custom_id"]: one["response"]["body"]["choices"] for one in answers}
    num_different = 0
    for one in lines:
        alone = (await http.post(one["url"], json=one["body"])).raise_for_status().json()
        num_different += alone["choices"] != choices.get(one["custom_id"])
    return num_different


async def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    port, lines = free_port(), [line(number, args.tokens) for number in range(args.lines)]
    url, log, chance = f"http://127.0.0.1:{port}", folder / "log", random.Random(args.seed)
    kills = sorted(chance.uniform(0.05, 0.95) * args.lines for _ in range(args.kills))

    def server(store: str) -> Any:
        command = [*SERVE, "--port", str(port), "--store", f"sqlite:///{folder}/{store}.sqlite"]
        return serving(command, f"{url}/health/ready", log, wait_s=180.0)

    async with httpx.AsyncClient(base_url=url, timeout=60.0, limits=httpx.Limits(max_connections=None)) as http:
        load = Load(http, args.rate)

        async def quiet() -> None:
            async with load.running("without"):
                await asyncio.sleep(WARM_S + args.quiet_s)

        begun, batch = time.monotonic(), ""
        for number, point in enumerate([*kills, float("inf")]):
            with server("batch") as process:
                if not batch:
                    await quiet()
                    batch = await create(http, lines)
                async with load.running("beside"):
                    found = await reached(http, batch, point)
                    if number < len(kills):
                        process.kill()
                        print(f"killed at {found['request_counts']}", flush=True)
                if number == len(kills):
                    await quiet()
                    answers = await results(http, found["output_file_id"])
                    faults = await results(http, found["error_file_id"])
                    num_different = await differing(http, lines[::STEP], answers)
            if number < len(kills):
                with server(f"empty-{number}"):
                    await quiet()
    times = Counter(one["custom_id"] for one in [*answers, *faults])
    lost = [one["custom_id"] for one in lines if not times[one["custom_id"]]]
    return {
        "status": found["status"],
        "lines": {
            "asked": len(lines),
            "lost": len(lost),
            "doubled": sum(count > 1 for count in times.values()),
            "failed": len(faults),
            "compared": len(lines[::STEP]),
            "different": num_different,
        },
        "seconds": round(time.monotonic() - begun, 1),
        **latencies(load.phases),
    }


def latencies(phases: Sequence[Phase]) -> dict[str, Any]:
    found = {
        name: [second for phase in phases if phase.name == name for second in phase.seconds]
        for name in ("without", "beside")
    }
    p95 = {name: percentile(seconds, 0.95) for name, seconds in found.items()}
    return {
        "latency_ms": {name: figures(seconds) for name, seconds in found.items()},
        "p95_ratio": p95["beside"] and p95["without"] and round(p95["beside"] / p95["without"], 3),
        "refused": sum(phase.num_refused for phase in phases),
        "phases": [{"name": phase.name, **figures(phase.seconds)} for phase in phases],
    }


def figures(seconds: Sequence[float]) -> dict[str, float | None]:
    if not seconds:
        return {"requests": 0}
    p95 = percentile(seconds, 0.95) or 0.0
    return {
        "requests": len(seconds),
        "p50": round(1e3 * statistics.median(seconds), 1),
        "p95": round(1e3 * p95, 1),
        "max": round(1e3 * max(seconds), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--rate", type=float, default=5.0, help="interactive requests a second")
    parser.add_argument("--tokens", type=int, default=8, help="most of a line's answer")
    parser.add_argument("--quiet-s", type=float, default=40.0, help="of each phase without a batch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with TemporaryDirectory() as folder:
        found = asyncio.run(measure(args, Path(folder)))
    print(json.dumps(found, indent=2))
    if args.json:
        args.json.write_text(json.dumps({"provenance": provenance({"kills": args.seed}, {}), **found}, indent=2))
    counted = found["lines"]
    sys.exit(found["status"] != "completed" or any(counted[k] for k in ("lost", "doubled", "failed", "different")))


if __name__ == "__main__":
    main()
