"""Which alerts does a harm raise on a real Prometheus and Alertmanager, how soon, and what is silenced?

Usage: python -m benchmarks.alerts_live [CASE ...] [--repeats 2] [--per-s 1] [--every-s 5] [--busy] [--json OUT]

CASE (default: all), each on a fresh `prolepsis serve` with the default model and its draft head:
- healthy: nothing is done to it, so nothing may fire.
- damaged-head: the head is exchanged for one whose output rows are shuffled, its checksum right.
- damaged-head-on: the same after a rollout of the head is `on`, with guardrails that see it.
- hanging-proposer: a free proposer does not return from a call (`faulty_server`).
- hanging-head: the head, which computes with the target's threads, does not return from a call.
- full-disk: the data directory (store, audit key and anchor, switches) is a tmpfs of 24 MiB, which a file fills.
  Needs the right to mount.
- mismatch: verification takes first drafted tokens for right. Requests predict their answers, not quite rightly, and
  each is replayed; a quarter of the rate leaves replays the room that they wait for.
- rollout: a rollout of the head begins, a ticket on acceptance is posted to Alertmanager, and an operator rolls it
  back after a minute.

Chat requests of the shipped prompts come at a steady rate, before an exchange as many as a baseline takes. Rules,
routes and windows are the shipped ones; scrapes and evaluations come each `--every-s` seconds (shipped: 15). Times
count from the harm; a case lasts some minutes after it, long enough for an alert's own wait and Alertmanager's.
`--busy`: alerts on latency, cost and load, which other work on the machine raises, are shown and are no fault.
"""

import argparse
import asyncio
import errno
import json
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from io import FileIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from benchmarks.alert_stack import AlertName, Fate, Stack, running_stack
from benchmarks.script import options
from prolepsis.core.config import DEFAULT_MODEL
from prolepsis.engine.models.files.store import open_store
from prolepsis.engine.models.heads.registry import find_head
from prolepsis.lab.measure.arrivals import in_flight
from prolepsis.lab.measure.prompts import load_prompts
from prolepsis.lab.measure.provenance import provenance
from tests.commands import free_port, prolepsis, serving
from tests.simulation.damaged_head import damaged_head
from tests.simulation.server import keep_asking

HEAD, DAMAGED = "smollm2-135m-instruct", "damaged@9"
PRICES = "version: 1\ncurrency: EUR\nprices: [{name: cpu, per_device_hour: 0.2}]\n"
NUM_LEARNT, NUM_BEFORE = 220, 20
"""Requests before the harm: more than a baseline is learnt from where a head is exchanged, few otherwise."""
NUM_TOKENS = 16
AT_ONCE = 2
HEAD_ONLY = 'default: {mode: "on", proposers: [draft_head]}\n'
DISK_BYTES = 24 * 2**20
ON = """
rules:
  - name: head
    match: {route: /v1/chat/completions}
    mode: "on"
    proposers: [draft_head]
    shadow_percentage: 0
    rollout: {step_weights: [80], holdout: 10, gate: automatic, min_step_s: 1}
    guardrails:
      - {name: taken, metric: acceptance_rate, limit: 0.25}
      - {name: errors, metric: error_rate, margin: 0.2, dry_run: true}
"""
POSTED = "AcceptanceDrift"
STAGE = """
rules:
  - name: head
    match: {route: /v1/chat/completions}
    mode: "on"
    proposers: [draft_head]
    rollout: {step_weights: [50], holdout: 40, gate: automatic, min_step_s: 3600, max_step_s: 7200}
    guardrails: [{name: errors, metric: error_rate, limit: 0.9}]
"""


def _requests() -> list[Mapping[str, object]]:
    """Return requests that differ, greedy and sampled."""
    texts = [prompt.text for prompt in load_prompts(None)]
    return [_body(text, i, temperature) for i, text in enumerate(texts) for temperature in (0.0, 0.8)]


def _body(text: str, seed: int, temperature: float) -> Mapping[str, object]:
    messages = [{"role": "user", "content": text}]
    common = {"model": DEFAULT_MODEL, "max_tokens": NUM_TOKENS, "ignore_eos": True}
    return {**common, "messages": messages, "seed": seed, "temperature": temperature}


@dataclass
class Run:
    """One case while it runs."""

    folder: Path
    http: httpx.AsyncClient
    stack: Stack
    notes: list[str] = field(default_factory=list)
    statuses: dict[str, int] = field(default_factory=dict)
    """Answers by status."""
    bodies: Sequence[Mapping[str, object]] = field(default_factory=_requests)
    """The requests that are asked, in turn."""

    async def ask(self, i: int) -> None:
        """Ask the `i`-th request; whatever comes is counted."""
        status = "none"
        with suppress(httpx.HTTPError):
            reply = await self.http.post("/v1/chat/completions", json=self.bodies[i % len(self.bodies)])
            status = str(reply.status_code)
        self.statuses[status] = self.statuses.get(status, 0) + 1

    async def act(self, method: str, path: str, body: Mapping[str, object]) -> Any:
        """Do what an operator does."""
        reply = await self.http.request(method, path, json=body)
        assert reply.status_code == 200, reply.text
        return reply.json()

    async def note_drift(self, when: str) -> None:
        """Note what the server knows of its draft head."""
        reply = (await self.http.get("/admin/health")).json()["drift"]
        for one in reply["streams"]:
            if one["proposer"] == "draft_head":
                names = ("version", "status", "acceptance", "recent_acceptance", "benefit", "num_judged")
                self.notes.append(f"{when}: {one['traffic_class']}: {', '.join(f'{n} {one[n]}' for n in names)}")

    @property
    def silences(self) -> list[str]:
        """What amtool shows: comments of the silences that hold."""
        command = ["amtool", "--alertmanager.url", self.stack.alertmanager, "silence", "query", "-o", "json"]
        shown = subprocess.run(command, capture_output=True, check=True, text=True)  # noqa: S603
        return [f"{one['comment']} [{_matchers(one)}]" for one in json.loads(shown.stdout)]


def _matchers(silence: Mapping[str, Any]) -> str:
    return ", ".join(f"{one['name']}={one['value']}" for one in silence["matchers"])


Act = Callable[[Run], Awaitable[None]]


async def nothing(run: Run) -> None:
    pass


async def exchange(run: Run) -> None:
    await run.note_drift("before")
    await run.act("PUT", "/admin/heads", {"head": DAMAGED, "reason": "benchmark"})


async def rolled_out(run: Run) -> None:
    """Wait for the rollout to be on, and until its head's benefit is known."""
    for first in range(0, 10_000, AT_ONCE):  # as many at once as afterwards: a head that pays less is asked less
        await in_flight([partial(run.ask, first + i) for i in range(AT_ONCE)], AT_ONCE)
        [rollout] = (await run.http.get("/admin/rollouts")).json()["rollouts"]
        if rollout["phase"] == "on":
            await in_flight([partial(run.ask, number) for number in range(NUM_LEARNT)], AT_ONCE)
            return
    raise RuntimeError("the rollout did not come to its end")


async def predicted(run: Run) -> None:
    """Let requests predict their answers, each third word wrong, and wait until the answers so far are replayed.

    Such drafts cost nothing and are made for certain. Where a head's have to pay, or are late on busy cores, so few are
    made that hardly an answer is wrong.
    """
    run.bodies = [await _predicting(run, body) for body in run.bodies[:NUM_BEFORE]]
    while (await run.http.get("/admin/health")).json()["correctness"]["num_queued"]:  # noqa: ASYNC110  # of another process
        await asyncio.sleep(0.5)


async def _predicting(run: Run, body: Mapping[str, object]) -> Mapping[str, object]:
    answer = await run.act("POST", "/v1/chat/completions", body)
    words = answer["choices"][0]["message"]["content"].split(" ")
    words[2::3] = ["indeed"] * len(words[2::3])
    prediction = {"type": "content", "content": " ".join(words)}
    return {
        **body,
        "prediction": prediction,
        "speculation": {"mode": "always", "proposer": "prediction", "max_depth": 1},
    }


async def begin_fault(run: Run) -> None:
    (run.folder / "fault").touch()


async def fill_disk(run: Run) -> None:
    with (run.folder / "data" / "ballast").open("wb", buffering=0) as file:
        for size in (2**16, 1):
            _write_until_full(file, size)


def _write_until_full(file: FileIO, size: int) -> None:
    try:
        while True:
            file.write(b"\0" * size)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise


async def roll_out(run: Run) -> None:
    """Begin a rollout, and give Alertmanager a ticket of the cause that its stage explains: a real one takes hours."""
    await run.act("PUT", "/admin/policy", {"text": STAGE, "expect": 0, "reason": "benchmark"})
    await asyncio.sleep(10.0)
    own = {"rule": "head", "instance": run.http.base_url.netloc.decode()}
    labels = {"alertname": POSTED, "severity": "ticket", "cause": "acceptance", "region": "local", **own}
    reply = await run.http.post(f"{run.stack.alertmanager}/api/v2/alerts", json=[{"labels": labels}])
    assert reply.status_code == 200, reply.text


async def roll_back(run: Run) -> None:
    run.notes.append(f"amtool in the stage: {run.silences}")
    [rollout] = (await run.http.get("/admin/rollouts")).json()["rollouts"]
    await run.act("POST", f"/admin/rollouts/{rollout['id']}/rollback", {"reason": "benchmark"})
    await asyncio.sleep(5.0)
    run.notes.append(f"amtool after it: {run.silences}")


JOINS = "joins"
"""Of its cause there was a notification already: its own comes with the group's next one."""
OF_THE_MACHINE = ("FirstTokenBudgetBurns", "TokenLatencyBudgetBurns", "CostBudgetBurns", "Saturated", "QueueGrows")
Expected = Mapping[str, str]
"""By alert and severity ("Name page"): the receiver, or what suppresses it."""


@dataclass(frozen=True, slots=True)
class Case:
    harm: Act
    seconds: float
    """That are looked at after the harm."""
    expected: Expected = field(default_factory=dict)
    before: Act = nothing
    later: tuple[float, Act] | None = None
    """Seconds after the harm, and what is done then."""
    fault: str = ""
    """Of `faulty_server`."""
    settings: Mapping[str, str] = field(default_factory=dict)
    policy: str = ""
    rate: float = 1.0
    """Share of the rate that is asked for on the command line."""
    on_tmpfs: bool = False


CASES: Mapping[str, Case] = {
    "healthy": Case(nothing, 150.0),
    "damaged-head": Case(
        exchange, 150.0, {"AcceptanceCliff page": "pages", "BenefitGone ticket": "AcceptanceCliff"}, policy=HEAD_ONLY
    ),
    "damaged-head-on": Case(
        exchange,
        240.0,
        {"AcceptanceCliff page": "pages", "RolloutRolledBack ticket": "tickets"},
        before=rolled_out,
        policy=ON,
    ),
    "hanging-proposer": Case(
        begin_fault,
        160.0,
        {"ProposerFails ticket": "tickets", "BreakerOpen ticket": JOINS},
        fault="hanging-proposer",
    ),
    "hanging-head": Case(begin_fault, 150.0, {"EngineStuck page": "pages"}, fault="hanging-head", policy=HEAD_ONLY),
    "full-disk": Case(fill_disk, 210.0, {"StoreDown page": "pages"}, on_tmpfs=True),
    "mismatch": Case(
        begin_fault,
        120.0,
        {"OutputsDiffer page": "pages", "CorrectnessBudgetBurns page": "pages"},
        fault="unverified",
        settings={"replay-sample": "1.0"},
        before=predicted,
        rate=0.25,
    ),
    "rollout": Case(
        roll_out,
        150.0,
        {f"{POSTED} ticket": "silence", "RolloutRolledBack ticket": "tickets"},
        later=(60.0, roll_back),
    ),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the alerts of one run. Seconds from the harm; below 0: before it."""

    case: str
    alerts: Mapping[str, Mapping[str, Any]]
    faults: list[str]
    """What was not as expected."""
    notes: list[str]
    statuses: Mapping[str, int]


async def measure(name: str, args: argparse.Namespace) -> Outcome:
    case = CASES[name]
    with TemporaryDirectory() as given:
        folder, port, alertmanager = Path(given), free_port(), free_port()
        url = f"http://127.0.0.1:{port}"
        with (
            _data(folder, on_tmpfs=case.on_tmpfs),
            serving(_serve(case, folder, port, alertmanager), f"{url}/health/ready", folder / "server.log"),
            running_stack(folder, port, alertmanager, args.every_s) as stack,
        ):
            async with httpx.AsyncClient(base_url=url, timeout=120.0) as http, stack.watched():
                run = Run(folder, http, stack)
                began = await _harmed(case, run, case.rate * args.per_s)
    alerts = {" ".join(key): _shown(fate, began) for key, fate in sorted(stack.fates.all.items())}
    counted = {key: fate for key, fate in stack.fates.all.items() if not args.busy or key[0] not in OF_THE_MACHINE}
    return Outcome(name, alerts, _faults(case, counted), run.notes, run.statuses)


async def _harmed(case: Case, run: Run, per_s: float) -> float:
    """Run a case; return when the harm began (monotonic clock)."""
    num_before = NUM_LEARNT if case.harm is exchange else NUM_BEFORE
    await in_flight([partial(run.ask, i) for i in range(num_before)], AT_ONCE)
    await case.before(run)
    async with _traffic(run, per_s):
        await asyncio.sleep(20.0)
        began = time.monotonic()
        await case.harm(run)
        if case.later is not None:
            await asyncio.sleep(began + case.later[0] - time.monotonic())
            await case.later[1](run)
        await asyncio.sleep(began + case.seconds - time.monotonic())
        if case.harm is exchange:
            await run.note_drift("at the end")
    return began


@asynccontextmanager
async def _traffic(run: Run, per_s: float) -> AsyncIterator[None]:
    """Ask at a steady rate while the block runs; what hangs then is left."""
    asking = asyncio.create_task(keep_asking(run.ask, per_s=per_s, until=lambda: False))
    try:
        yield
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


@contextmanager
def _data(folder: Path, *, on_tmpfs: bool) -> Iterator[None]:
    """Make the server's data directory."""
    data = folder / "data"
    data.mkdir()
    if not on_tmpfs:
        yield
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", data], check=True)  # noqa: S603, S607
    try:
        yield
    finally:
        subprocess.run(["umount", data], check=True)  # noqa: S603, S607


def _serve(case: Case, folder: Path, port: int, alertmanager: int) -> list[str]:
    """Write what the server reads, and return its command."""
    models = open_store(None).root
    models.mkdir(parents=True, exist_ok=True)
    (folder / "models").symlink_to(models)  # beside the heads
    damaged_head(find_head(HEAD).folder, folder / "heads" / DAMAGED)
    (folder / "prices.yaml").write_text(PRICES)
    data = folder / "data"
    settings = {
        "port": str(port),
        "model-dir": str(folder / "models"),
        "draft-head": HEAD,
        "store": f"sqlite:///{data / 'store.sqlite'}",
        "controls-file": str(data / "controls.json"),
        "audit-key": str(data / "audit-key.pem"),
        "prices": str(folder / "prices.yaml"),
        "alertmanager": f"http://127.0.0.1:{alertmanager}",
        "region": "local",
        **case.settings,
    }
    if case.policy:
        (folder / "policy.yaml").write_text(case.policy)
        settings["policy"] = str(folder / "policy.yaml")
    options = [part for name, value in settings.items() for part in (f"--{name}", value)]
    if case.fault:
        return [sys.executable, "-m", "benchmarks.faulty_server", case.fault, str(folder / "fault"), *options]
    return prolepsis("serve", *options)


def _shown(fate: Fate, began: float) -> Mapping[str, Any]:
    times = {name: getattr(fate, name) for name in ("pending", "firing", "notified", "ended")}
    since = {name: None if at is None else round(at - began, 1) for name, at in times.items()}
    return {**since, "receiver": fate.receiver, "suppressed_by": sorted(fate.suppressed_by), "of": sorted(fate.labels)}


def _faults(case: Case, fates: Mapping[AlertName, Fate]) -> list[str]:
    """Return what is not as designed: alerts that are missing, that went elsewhere, or that nothing explains."""
    fired = {" ".join(key): fate for key, fate in fates.items() if fate.firing or fate.suppressed_by}
    faults = [f"{name} did not fire" for name in case.expected if name not in fired]
    for name, fate in fired.items():
        wanted = case.expected.get(name)
        how = fate.receiver or ", ".join(sorted(fate.suppressed_by)) or "nothing"
        is_covered = bool(fate.suppressed_by) and not fate.receiver
        if wanted is None and not is_covered:
            faults.append(f"{name} fired too: {how}")
        elif wanted and wanted not in (JOINS, fate.receiver) and not any(wanted in by for by in fate.suppressed_by):
            faults.append(f"{name} went to {how}, not {wanted}")
    return faults


def report(outcome: Outcome) -> None:
    print(f"\n{outcome.case}: {'; '.join(outcome.faults) or 'as designed'}; answers {dict(outcome.statuses)}")
    for name, one in outcome.alerts.items():
        times = "  ".join(f"{what} {one[what]!s:>6}" for what in ("pending", "firing", "notified", "ended"))
        by = f"suppressed by {', '.join(one['suppressed_by'])}" if one["suppressed_by"] else ""
        print(f"  {name:<36}{times}  {one['receiver']:<8} {by}")
    for note in outcome.notes:
        print(f"  {note}")
    sys.stdout.flush()


def main() -> None:
    args = options(__doc__, "cases*", repeats=1, per_s=1.0, every_s=5.0, busy=False)
    if unknown := set(args.cases) - set(CASES):
        sys.exit(f"{', '.join(sorted(unknown))}; allowed: {', '.join(CASES)}")
    for program in ("prometheus", "prometheus-alertmanager", "amtool"):
        if shutil.which(program) is None:
            sys.exit(f"{program} is missing: apt-get install prometheus prometheus-alertmanager")
    outcomes = []
    for _ in range(args.repeats):
        for name in args.cases or CASES:
            outcomes.append(asyncio.run(measure(name, args)))
            report(outcomes[-1])
    if args.json:
        document = {"provenance": provenance({}, {}), "outcomes": [asdict(outcome) for outcome in outcomes]}
        args.json.write_text(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
