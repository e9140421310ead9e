"""A server with all of control in this process, around an engine whose steps are watched, for benchmarks and tests.

Nothing is replaced: the application, its policy with rollouts, the store, flags, kill switch and breakers are those of
`prolepsis serve`. Requests come over ASGI, without sockets.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import httpx2

from prolepsis.control.controls.flag_file import FlagFile
from prolepsis.control.rollout.machine import RolloutEvent
from prolepsis.control.rollout.runtime import Rollouts
from prolepsis.control.store.store import Store, open_store, unrecorded
from prolepsis.core.config import ServerConfig
from prolepsis.core.engine_client import EngineClient
from prolepsis.core.events import Event, Terminal
from prolepsis.core.figures import Figure, StepDone
from prolepsis.core.messages import ApplyPlan, Control, StopRun
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.engine.step import Engine
from prolepsis.engine.text.tokenizer import Tokenizer
from prolepsis.engine.thread import ThreadEngineClient
from tests.server.application import build, feature_of

ROUTE = "/v1/completions"
FLAGS = """
flags:
  speculation.enabled:
    state: ENABLED
    variants: {"on": true, "off": false}
    defaultVariant: "on"
  speculation.kill:
    state: ENABLED
    variants: {"on": true, "off": false}
    defaultVariant: "off"
"""
Body = Mapping[str, Any]
Job = Callable[[int], Awaitable[None]]


class StepLog(Metrics):
    """Observes an engine's steps: when each ended, and whether it verified a draft."""

    def __init__(self) -> None:
        super().__init__()
        self.num_rounds: Callable[[], int] = int
        """Verified drafts so far; set once there is an engine to ask."""
        self.ends: list[float] = []
        """When each step ended (`time.monotonic`)."""
        self.drafted: list[bool] = []
        """Whether it verified a draft."""
        self._rounds = 0

    def observe(self, figure: Figure) -> None:
        super().observe(figure)
        if not isinstance(figure, StepDone):
            return
        rounds = self.num_rounds()
        self.drafted.append(rounds != self._rounds)  # another head counts anew
        self._rounds = rounds
        self.ends.append(time.monotonic())


@dataclass(frozen=True, slots=True)
class Command:
    """A command of control to the engine: how many steps had ended by then, and the clock's reading."""

    what: str
    num_steps: int
    at: float


class WatchedClient(ThreadEngineClient):
    """Records the commands of control to the engine, and how often the end of each request was reported."""

    def __init__(self, engine: Engine, steps: StepLog) -> None:
        super().__init__(engine)
        self.steps = steps
        self.commands: list[Command] = []
        self.ended: Counter[str] = Counter()
        steps.num_rounds = lambda: sum(counts.num_rounds for counts in self.proposer_counts())

    def send(self, control: Control) -> None:
        match control:
            case ApplyPlan(plan):
                self._note(f"plan: {plan.reason}, leaves out {len([e for e in plan.disabled if not e.num_trials])}")
            case StopRun(run):
                self._note(f"stop: {run}")
        super().send(control)

    async def close(self) -> None:
        """Stay open: servers around one engine come and go."""

    async def end(self) -> None:
        """Stop the engine."""
        await super().close()

    def drafted_after(self, command: Command) -> int:
        """Return how many steps drafted that ended after this command; one of them may have run already."""
        return sum(self.steps.drafted[command.num_steps :])

    def _note(self, what: str) -> None:
        self.commands.append(Command(what, len(self.steps.ends), time.monotonic()))

    def _hand_over(self, events: list[Event]) -> None:
        self.ended.update(event.request_id for event in events if isinstance(event, Terminal))
        super()._hand_over(events)


@dataclass
class RunningServer:
    """A running server."""

    http: httpx2.AsyncClient
    rollouts: Rollouts | None = None
    store: Store | None = None
    events: list[tuple[float, RolloutEvent]] = field(default_factory=list)
    """What became of rollouts, with the clock's reading."""

    async def ask(self, body: Body) -> dict[str, Any]:
        """Return the whole reply; raises `RuntimeError` for any status but 200."""
        reply = await self.http.post(ROUTE, json=body, timeout=120)
        if reply.status_code != 200:
            raise RuntimeError(f"{reply.status_code}: {reply.text}")
        found: dict[str, Any] = reply.json()
        return found

    @property
    def last(self) -> tuple[str, str]:
        """The last event of the only rollout, and its stage."""
        event = self.events[-1][1] if self.events else None
        return (event.kind, event.stage) if event else ("", "")


@asynccontextmanager
async def running_server(
    client: EngineClient,
    metrics: Metrics,
    tokenizer: Tokenizer,
    folder: Path,
    *,
    policy: str | None = None,
    **config: Any,
) -> AsyncIterator[RunningServer]:
    """Run a server on `client` while the block runs; its files are in `folder`.

    Without a `policy` it has no control at all: no store, flags, breakers, drift and replays either.
    """
    bare = policy is None
    settings: dict[str, Any] = {"controls_file": folder / "controls.json"}
    settings |= {"breaker": "off", "drift": "off", "replay_sample": 0.0} if bare else {}
    server = ServerConfig(**(settings | config))
    store = unrecorded() if bare else open_store(f"sqlite:///{folder / 'store.sqlite'}", metrics.registry)
    made = RunningServer(httpx2.AsyncClient(), store=store)
    file, flags = None, None
    if policy is not None:
        file = folder / "policy.yaml"
        file.write_text(policy)
        (folder / "flags.yaml").write_text(FLAGS)
        flags = FlagFile(folder / "flags.yaml")
    app = build(
        server,
        client,
        tokenizer,
        metrics,
        policy=file,
        flags=flags,
        store=store,
    )
    made.rollouts = feature_of(app, Rollouts)
    made.rollouts.listen(lambda _, event: made.events.append((time.monotonic(), event)))
    try:
        async with (
            app.router.lifespan_context(app),
            httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://localhost") as made.http,
        ):
            yield made
    finally:
        store.close()


async def keep_asking(job: Job, *, per_s: float = math.inf, at_once: int = 64, until: Callable[[], bool]) -> None:
    """Start `job(0)`, `job(1)`, ... at a steady rate, at most so many at once, until `until` holds."""
    began, gate, jobs = time.monotonic(), asyncio.Semaphore(at_once), set[asyncio.Task[None]]()

    async def one(i: int) -> None:
        try:
            await job(i)
        finally:
            gate.release()

    for i in count():
        await asyncio.sleep(max(0.0, began + i / per_s - time.monotonic()))
        await gate.acquire()
        if until():
            break
        jobs.add(asyncio.ensure_future(one(i)))
        jobs -= {done for done in jobs if done.done() and done.exception() is None}
    await asyncio.gather(*jobs)


def bodies(prompts: Sequence[Sequence[int]], model: str, max_tokens: int) -> list[Body]:
    """Return two requests a prompt, greedy and sampled, that say what was in effect and which tokens they got."""
    common = {"model": model, "max_tokens": max_tokens, "ignore_eos": True, "return_token_ids": True}
    return [
        {**common, "prompt": list(prompt), "temperature": temperature, "seed": i, "speculation": {"metrics": True}}
        for i, prompt in enumerate(prompts)
        for temperature in (0.0, 0.8)
    ]


def tokens_of(reply: Mapping[str, Any]) -> list[int]:
    return list(reply["choices"][0]["token_ids"])
