"""What control costs and how fast it acts, on the default model: one row of figures a word.

Usage: python -m benchmarks.control_plane ROW... [--repeats 5] [--tokens 32] [--json OUT]

ROW:
- damage: a draft head is exchanged for a damaged one in mid-canary, at 5 canary requests/s: seconds until its rollout
  is rolled back, steps that draft after the decision.
- damage-on: the same after the rollout is on and some hundred requests showed the head's benefit, at one request a
  second, without a guardrail that sees requests that do not draft: seconds until it is rolled back, and until a warning
  says that the head's benefit is gone; how many requests were sampled.
- kill: steps that draft after the kill switch was turned, with 8 answers in flight.
- request: milliseconds that policy, flags, rollout, store and the rest of control add to a request (engine of scripts).
- step: milliseconds that control adds to a step: what the engine does in it, and what runs beside it.
- shadow: throughput with the suffix proposer in shadow for every request, over that without: `bounded` as served, where
  requests beyond shadow's share of the time are put off, `all` where none is.
- off: throughput with speculation forced off by policy, over that of an engine that has no proposer.

Arms alternate in every repeat, in `shadow` and `off` also every few prompts; shown are median, minimum, maximum and
number. `control_crash` has the row on kill -9.
"""

import argparse
import asyncio
import json
import sqlite3
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.http_overhead import engine
from prolepsis.core.config import EngineConfig
from prolepsis.core.requests import GenerateRequest, SamplingParams, SpeculationChoice
from prolepsis.core.telemetry.logs import configure_logs
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.engine.build import assemble
from prolepsis.engine.models.heads.registry import find_head, head_for
from prolepsis.engine.models.load import LoadedModel, load_model
from prolepsis.lab.measure.arrivals import in_flight
from prolepsis.lab.measure.prompts import encode_prompts, load_prompts
from prolepsis.lab.measure.provenance import provenance
from prolepsis.server.cli.ask import ask
from tests.fake_client import INFO
from tests.server.fakes import ByteTokenizer
from tests.simulation.damaged_head import damaged_head
from tests.simulation.rollouts import Pace, RolledBack, RolloutPlan, Traffic, ask_until, counted_once, damage, shown
from tests.simulation.server import (
    Body,
    Command,
    RunningServer,
    StepLog,
    WatchedClient,
    bodies,
    running_server,
)

CONFIG = EngineConfig(max_model_len=1024, kv_memory="128MiB")
CANARY_PER_S = 5.0
AT_ONCE = 8
TOKENS_IN_SHADOW = 32
OTHER_TRAFFIC_CLASS = "chat-completions/standard/structured/long"
SILENT = "prediction"
"""A proposer that drafts for requests with a prediction, which none here has."""
BEFORE_ON = 240
"""Requests between the end of a rollout and the exchange: more than a benefit is learned from."""
OFF = "default: {mode: off}\n"
ON = "default: {mode: on}\n"
Figures = dict[str, list[float]]
Prompt = tuple[int, ...]
Arm = Callable[[int, int, Sequence[Prompt]], Awaitable[float]]
"""How many at once, the number of the measurement (100 for each repeat), prompts; returns tokens per second."""


class Bench:
    """The default model, loaded once, and prompts for it."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.loaded: LoadedModel = load_model(CONFIG)
        self.prompts = [p.token_ids for p in encode_prompts(load_prompts(None), self.loaded.tokenizer)]
        self.prompts = self.prompts[:: args.stride]

    def client(self, config: EngineConfig = CONFIG, *, head: bool = True) -> WatchedClient:
        steps = StepLog()
        loaded_head = head_for("auto", self.loaded) if head else None
        return WatchedClient(assemble(config, self.loaded, observer=steps, head=loaded_head), steps)

    def bodies(self, prompts: Sequence[Prompt] | None = None) -> list[Body]:
        return bodies(self.prompts if prompts is None else prompts, self.loaded.model.info.name, self.args.tokens)


async def damage_row(bench: Bench) -> Figures:
    client = bench.client()
    found: Figures = {"decided_s": [], "last_draft_s": [], "steps_drafted_after": [], "outputs_changed": []}
    num_asked = 0
    with _damaged(client) as (folder, bad):
        for i in range(bench.args.repeats):
            plan = RolloutPlan(rule=f"head-{i}", shadow_percentage=0, min_step_s=500.0)
            files = folder / str(i)
            files.mkdir()
            async with _head_rollout(bench, client, plan, files) as traffic:
                pace = Pace(per_s=2 * CANARY_PER_S)
                taken = await damage(traffic, client, bad, after=bench.args.before, pace=pace)
            num_asked += traffic.num_asked
            found["last_draft_s"].append(taken.last_draft_s)
            _add_damage(found, taken, traffic)
    traffic.num_asked = num_asked
    found["requests"] = [num_asked]
    found["ended_once"] = [counted_once(client, traffic)]
    await client.end()
    return found


async def damage_on_row(bench: Bench) -> Figures:
    found: Figures = {"decided_s": [], "warned_s": [], "steps_drafted_after": [], "outputs_changed": []}
    found |= {"sampled": []}
    for _ in range(bench.args.repeats):
        await _damage_on(bench, found)
    return found


async def _damage_on(bench: Bench, found: Figures) -> None:
    client = bench.client()  # metrics belong to one server
    plan = RolloutPlan(shadow_percentage=0, step_weights="[80]", acceptance_rate=0.25, dry_length=True)
    decisions = client.engine.speculation.decisions
    with _damaged(client) as (files, bad):
        async with _head_rollout(bench, client, plan, files) as traffic:
            warm = Pace(at_once=2, most_s=600.0)
            await ask_until(traffic, warm, lambda: traffic.server.last[0] == "completed")
            before = max(bench.args.before, BEFORE_ON)
            await in_flight([partial(traffic.ask, number) for number in range(before)], 2)
            number = decisions.num_sampled
            taken = await damage(traffic, client, bad, after=0, pace=Pace(per_s=1.0, most_s=400.0))
        found["warned_s"] += _warnings(files / "store.sqlite", time.time() - time.monotonic() + taken.put_in_at)
    _add_damage(found, taken, traffic)
    found["sampled"].append(decisions.num_sampled - number)
    await client.end()


@contextmanager
def _damaged(client: WatchedClient) -> Iterator[tuple[Path, str]]:
    """Make a folder for a row, and in it a damaged copy of the head in use."""
    with TemporaryDirectory() as folder:
        source = find_head(str(client.info.draft_head)).folder
        yield Path(folder), str(damaged_head(source, Path(folder) / "damaged@9"))


@asynccontextmanager
async def _head_rollout(bench: Bench, client: WatchedClient, plan: RolloutPlan, files: Path) -> AsyncIterator[Traffic]:
    """Serve with the sound head in a rollout of its own, whose store is in `files`."""
    await client.swap_head("auto")
    tokenizer = bench.loaded.tokenizer
    async with running_server(client, client.steps, tokenizer, files, policy=str(plan), replay_sample=0.0) as server:
        traffic = Traffic(server, bench.bodies())
        await traffic.learn()
        yield traffic


def _add_damage(found: Figures, taken: RolledBack, traffic: Traffic) -> None:
    found["decided_s"].append(taken.decided_s)
    found["steps_drafted_after"].append(taken.drafted_after)
    found["outputs_changed"].append(traffic.num_wrong)
    print(taken, dict(traffic.seen), flush=True)


def _warnings(file: Path, since: float) -> list[float]:
    """Return the seconds from `since` (Unix time) to each warning of drift in the audit log."""
    with closing(sqlite3.connect(file)) as connection:
        rows = connection.execute("SELECT at, action FROM chain_links WHERE action LIKE 'drift.%'").fetchall()
    return [datetime.fromisoformat(at).timestamp() - since for at, _ in rows]


async def kill_row(bench: Bench) -> Figures:
    client = bench.client()
    found: Figures = {"steps_drafted_after": [], "ms_until_command": []}
    with TemporaryDirectory() as folder:
        async with running_server(
            client, client.steps, bench.loaded.tokenizer, Path(folder), policy=ON, breaker="off"
        ) as h:
            busy = asyncio.ensure_future(_keep_busy(h, bench))
            try:
                for _ in range(4 * bench.args.repeats):
                    await _until(lambda: any(client.steps.drafted[-4:]))
                    begun = time.monotonic()
                    command = await _turn(h, client, on=True)
                    await asyncio.sleep(0.4)
                    found["steps_drafted_after"].append(client.drafted_after(command))
                    found["ms_until_command"].append(1000 * (command.at - begun))
                    await _turn(h, client, on=False)
            finally:
                busy.cancel()
                await asyncio.gather(busy, return_exceptions=True)
    await client.end()
    return found


async def _turn(h: RunningServer, client: WatchedClient, *, on: bool) -> Command:
    num_told = len(client.commands)
    reply = await h.http.put("/admin/kill", json={"on": on, "reason": "drill"})
    assert reply.status_code == 200, reply.text
    return client.commands[num_told]


async def _keep_busy(h: RunningServer, bench: Bench) -> None:
    longer = [{**body, "max_tokens": 128} for body in bench.bodies()]
    while True:
        await in_flight([partial(h.ask, body) for body in longer], AT_ONCE)


async def request_row(args: argparse.Namespace) -> Figures:
    """Milliseconds of requests of one token that a script answers, with control and without, in turns."""
    body: Body = {"model": INFO.model, "prompt": "What is a prolepsis? " * 10, "max_tokens": 1, "temperature": 0.7}
    found: Figures = {"added_ms": [], "without_ms": []}
    with TemporaryDirectory() as folder:
        for name in ("bare", "full"):
            (Path(folder) / name).mkdir()
        plan = str(RolloutPlan(proposers="null", shadow_percentage=0, min_step_s=500.0))
        open_server = partial(running_server, tokenizer=ByteTokenizer(chat_template=None))
        async with (
            open_server(engine(), Metrics(), folder=Path(folder) / "bare") as bare,
            open_server(engine(), Metrics(), folder=Path(folder) / "full", policy=plan) as full,
        ):
            await asyncio.sleep(1.5)  # the rollout starts
            for number in range(-50, args.requests):
                times = {}
                order = (bare, full) if number % 2 else (full, bare)
                for one in order:
                    began = time.perf_counter()
                    await one.ask(body)
                    times[one is full] = 1000 * (time.perf_counter() - began)
                if number >= 0:
                    found["added_ms"].append(times[True] - times[False])
                    found["without_ms"].append(times[False])
            assert full.last[0] == "started", full.last
    return found


async def step_row(bench: Bench) -> Figures:
    """What control adds to the engine's own part of a step, and the processor time that runs beside the steps."""
    client = bench.client()
    plan = str(RolloutPlan(proposers="[prediction]", shadow_percentage=0, step_weights="[80]", min_step_s=500.0))
    found: Figures = {name: [] for name in ("outside_ms_bare", "outside_ms_full", "added_in_step_ms", "throughput")}
    found |= {name: [] for name in ("beside_ms_per_s", "added_beside_ms", "added_ms")}
    with TemporaryDirectory() as folder:
        for number in range(bench.args.repeats):
            arms: dict[bool, tuple[float, float, float]] = {}
            for full in (False, True) if number % 2 else (True, False):
                files = Path(folder) / f"{number}{full}"
                files.mkdir()
                policy = plan.replace("name: head", f"name: head-{number}", 1) if full else None
                async with running_server(client, client.steps, bench.loaded.tokenizer, files, policy=policy) as h:
                    arms[full] = await _loaded_steps(h, client, bench, full=full)
            (bare_ms, bare_rate, idle), (full_ms, full_rate, beside) = arms[False], arms[True]
            beside -= idle
            found["outside_ms_bare"].append(bare_ms)
            found["outside_ms_full"].append(full_ms)
            found["added_in_step_ms"].append(full_ms - bare_ms)
            found["throughput"].append(full_rate / bare_rate)
            found["beside_ms_per_s"].append(beside)
            found["added_beside_ms"].append(beside / full_rate)
            found["added_ms"].append(full_ms - bare_ms + beside / full_rate)
    await client.end()
    return found


async def _loaded_steps(
    h: RunningServer, client: WatchedClient, bench: Bench, *, full: bool
) -> tuple[float, float, float]:
    """Return median ms of a step outside the pass, steps per second, and the ms of processor time a second when idle.

    Only a proposer that has nothing to say may draft, so that both arms take the same steps. With control, a breaker
    set by hand makes the engine look at every row, and the evidence of the requests is judged every second.
    """
    if full:
        closed = {"proposer": "suffix", "traffic_class": OTHER_TRAFFIC_CLASS, "state": "forced_open"}
        reply = await h.http.put("/admin/health", json=closed)
        assert reply.status_code == 200, reply.text
        await asyncio.sleep(1.2)
    speculation = {} if full else {"speculation": {"proposer": SILENT}}
    asked = [{**body, **speculation} for body in bench.bodies()]
    timings = client.engine.timings
    first, began = timings.num_steps, time.monotonic()
    await in_flight([partial(h.ask, body) for body in asked], AT_ONCE)
    rate = (timings.num_steps - first) / (time.monotonic() - began)
    outside = [1000 * one.outside_forward for one in list(timings.last)[-(timings.num_steps - first) :]]
    spent, began = time.process_time(), time.monotonic()
    await asyncio.sleep(2.0)
    beside = 1000 * (time.process_time() - spent) / (time.monotonic() - began)
    return statistics.median(outside), rate, beside


async def shadow_row(bench: Bench) -> Figures:
    arms = {
        True: SpeculationChoice("shadow", proposers=("suffix",)),
        False: SpeculationChoice("off"),
    }
    found: Figures = {}
    for name, cost in {"bounded": CONFIG.shadow_cost, "all": 1.0}.items():
        changes = {"proposers": ("suffix",), "shadow_cost": cost}
        client = bench.client(CONFIG.model_copy(update=changes), head=False)
        figures = await _alternate(bench, {arm: partial(_set, client, choice) for arm, choice in arms.items()})
        found |= {f"{name}_{key}": values for key, values in figures.items()}
        await client.end()
    return found


async def off_row(bench: Bench) -> Figures:
    full, none = bench.client(), bench.client(CONFIG.model_copy(update={"num_speculative_tokens": 0}), head=False)
    with TemporaryDirectory() as folder:

        async def one(
            client: WatchedClient, policy: str | None, at_once: int, number: int, prompts: Sequence[Prompt]
        ) -> float:
            files = Path(folder) / f"{policy is None}{at_once}{number}"
            files.mkdir()
            asked = [{**body, "seed": (number + 1) * 100 + i} for i, body in enumerate(bench.bodies(prompts))]
            async with running_server(client, client.steps, bench.loaded.tokenizer, files, policy=policy) as h:
                await h.ask(asked[0])
                began = time.perf_counter()
                replies = await in_flight([partial(h.ask, body) for body in asked], at_once)
                took = time.perf_counter() - began
            return sum(int(reply["usage"]["completion_tokens"]) for reply in replies) / took

        found = await _alternate(bench, {True: partial(one, full, OFF), False: partial(one, none, None)})
    await full.end()
    await none.end()
    return found


async def _alternate(bench: Bench, arms: dict[bool, Arm]) -> Figures:
    """Return tokens per second of both arms and their ratio, by how many were asked at once.

    Arms take turns every `AT_ONCE` prompts, so that a machine others use too is about as fast for both.
    """
    found: Figures = {}
    for at_once in (1, AT_ONCE):
        parts = [bench.prompts[i : i + AT_ONCE] for i in range(0, len(bench.prompts), AT_ONCE)]
        for arm in arms.values():
            await arm(at_once, -1, parts[0])  # warm
        turns = [(100 * repeat + i, part) for repeat in range(bench.args.repeats) for i, part in enumerate(parts)]
        for number, part in turns:
            rates = {
                arm: await arms[arm](at_once, number, part) for arm in ((False, True) if number % 2 else (True, False))
            }
            found.setdefault(f"with_{at_once}", []).append(rates[True])
            found.setdefault(f"without_{at_once}", []).append(rates[False])
            found.setdefault(f"ratio_{at_once}", []).append(rates[True] / rates[False])
    return found


async def _set(
    client: WatchedClient, choice: SpeculationChoice, at_once: int, number: int, prompts: Sequence[Prompt]
) -> float:
    params = SamplingParams(temperature=0.0, max_tokens=TOKENS_IN_SHADOW, ignore_eos=True)
    scope = f"{choice.enabled} {at_once} {number // 100}"  # an index of past outputs for each repeat
    requests = [
        GenerateRequest(f"{scope} {number} {i}", prompt, params, cache_salt=scope, speculation=choice)
        for i, prompt in enumerate(prompts)
    ]
    began = time.perf_counter()
    answers = await in_flight([partial(ask, client, request) for request in requests], at_once)
    return sum(len(answer.token_ids) for answer in answers) / (time.perf_counter() - began)


async def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError("nothing was drafted for 20 s")
        await asyncio.sleep(0.02)


ROWS: dict[str, Callable[[Bench], Awaitable[Figures]]] = {
    "damage": damage_row,
    "damage-on": damage_on_row,
    "kill": kill_row,
    "step": step_row,
    "shadow": shadow_row,
    "off": off_row,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="+", choices=[*ROWS, "request"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--before", type=int, default=30, help="canary requests that draft before the head is damaged")
    parser.add_argument("--stride", type=int, default=1, help="every so manieth of the shipped prompts")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with Path("/dev/null").open("w") as nowhere:
        configure_logs("info", stream=nowhere)  # lines are made, as in service, and go nowhere
        results = asyncio.run(measure(args))
    if args.json:
        args.json.write_text(json.dumps({"provenance": provenance({}, {}), "figures": results}, indent=2))


async def measure(args: argparse.Namespace) -> dict[str, Figures]:
    bench = Bench(args) if set(args.rows) & set(ROWS) else None
    results: dict[str, Figures] = {}
    for row in args.rows:
        if row == "request":
            results[row] = await request_row(args)
        else:
            assert bench is not None, "rows of the model load it"
            results[row] = await ROWS[row](bench)
        for name, figures in results[row].items():
            print(f"{row:<8} {name:<22} {shown(figures)}", flush=True)
    return results


if __name__ == "__main__":
    main()
