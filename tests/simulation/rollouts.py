"""Rollouts on a running server: one that goes up to the end, and one whose draft head is exchanged for a damaged one.

Every answer is compared with that of plain decoding, and every request's end is counted.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.server import Body, RunningServer, WatchedClient, keep_asking, tokens_of

PLAIN = {"speculation": {"mode": "off", "metrics": True}}


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPlan:
    """A policy with one rollout."""

    rule: str = "head"
    proposers: str = "[draft_head]"
    stages: str = "[50]"
    shadow_percentage: int = 100
    min_samples: int = 20
    min_stage_s: float = 1.0
    max_stage_s: float = 600.0
    acceptance_length: float = 1.25
    acceptance_rate: float = 0.1
    dry_length: bool = False
    """The guardrail on acceptance length does not decide."""

    def __str__(self) -> str:
        return f"""
rules:
  - name: {self.rule}
    match: {{route: /v1/completions}}
    mode: "on"
    proposers: {self.proposers}
    shadow_percentage: {self.shadow_percentage}
    rollout:
      stages: {self.stages}
      holdout: 10
      gate: automatic
      min_samples: {self.min_samples}
      min_stage_s: {self.min_stage_s}
      max_stage_s: {self.max_stage_s}
    guardrails:
      - {{name: taken, metric: acceptance_rate, limit: {self.acceptance_rate}}}
      - {{name: far, metric: acceptance_length, limit: {self.acceptance_length}, dry_run: {self.dry_length}}}
      - {{name: errors, metric: error_rate, margin: 0.2, dry_run: true}}
"""


@dataclass
class Traffic:
    """Asks the same requests in turn, and holds each answer against that of plain decoding."""

    server: RunningServer
    bodies: Sequence[Body]
    expected: list[list[int]] = field(default_factory=list)
    num_asked: int = 0
    num_wrong: int = 0
    seen: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """Answers by arm, mode in effect and reason."""

    async def learn(self) -> None:
        """Ask each request plainly, all at once."""
        replies = await asyncio.gather(*(self.server.ask({**body, **PLAIN}) for body in self.bodies))
        self.expected = [tokens_of(reply) for reply in replies]
        self.num_asked += len(self.bodies)

    async def ask(self, i: int) -> None:
        """Ask the `i`-th request, counted around."""
        i %= len(self.bodies)
        self.num_asked += 1
        reply = await self.server.ask(self.bodies[i])
        self.num_wrong += tokens_of(reply) != self.expected[i]
        effective = reply["metrics"]["effective"]
        self.seen[effective.get("arm", ""), effective["mode"], effective["reason"]] += 1

    @property
    def num_on(self) -> int:
        """Answers of the canary for which drafts were verified."""
        return sum(n for (arm, mode, _), n in self.seen.items() if arm == "canary" and mode == "on")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How requests come: at a rate, at most so many at once, and for how long at most."""

    per_s: float = math.inf
    at_once: int = 64
    most_s: float = 120.0


async def ask_until(traffic: Traffic, pace: Pace, condition: Callable[[], bool]) -> None:
    """Ask until the condition holds; raises `RuntimeError` where it does not in time."""
    began = time.monotonic()

    def late() -> bool:
        return time.monotonic() - began > pace.most_s

    await keep_asking(traffic.ask, per_s=pace.per_s, at_once=pace.at_once, until=lambda: condition() or late())
    if not condition():
        events = [(event.kind, event.stage, event.reason) for _, event in traffic.server.events]
        raise RuntimeError(f"nothing happened within {pace.most_s:g} s: {events}, {dict(traffic.seen)}")


@dataclass(frozen=True, slots=True)
class RolledBack:
    """How a damaged head's rollout ended. Seconds since it was put in."""

    put_in_at: float
    """The clock's reading (`time.monotonic`)."""
    decided_s: float
    """Until the engine got the command."""
    last_draft_s: float
    """Until the last step that verified a draft."""
    drafted_after: int
    """Steps that drafted and ended after the command; one may have run already by then."""
    canary_before: int
    """Requests of the canary that had drafted with the good head."""
    guardrails: dict[str, tuple[float, float]]
    """By guardrail: what was seen, what was allowed."""
    commands: list[str]
    """Commands of control to the engine since the exchange."""


async def damage(
    traffic: Traffic, client: WatchedClient, head: str, *, after: int, pace: Pace, warm: Pace | None = None
) -> RolledBack:
    """Put `head` in once `after` canary requests drafted, and ask until it is rolled back.

    `warm`: how requests come before; None: as afterwards. Raises `RuntimeError` where it is not in time.
    """
    server = traffic.server
    await ask_until(traffic, warm or pace, lambda: traffic.num_on >= after)
    before, num_before = traffic.num_on, len(client.commands)
    await client.swap_head(head)
    put_in = time.monotonic()
    await ask_until(traffic, pace, lambda: server.last[0] == "rolled_back")
    await asyncio.gather(*(traffic.ask(i) for i in range(8)))
    [stop] = [command for command in client.commands[num_before:] if command.what.startswith("stop: ")]
    steps, judgement = client.steps, server.events[-1][1].judgement
    drafted = [end for end, did in zip(steps.ends, steps.drafted, strict=True) if did and end > put_in]
    return RolledBack(
        put_in_at=put_in,
        decided_s=stop.at - put_in,
        last_draft_s=max(drafted, default=put_in) - put_in,
        drafted_after=client.drafted_after(stop),
        canary_before=before,
        guardrails={f.name: (f.estimate, f.allowed) for f in judgement.guardrails} if judgement else {},
        commands=[f"{one.at - put_in:.1f} s: {one.what}" for one in client.commands[num_before:]],
    )


def counted_once(client: WatchedClient, traffic: Traffic) -> bool:
    """Return whether every request asked ended exactly once."""
    return len(client.ended) == traffic.num_asked and set(client.ended.values()) == {1}


def shown(figures: Sequence[Any]) -> str:
    """Return median, minimum and maximum."""
    if not figures:
        return "none"
    ordered = sorted(float(x) for x in figures)
    middle = len(ordered) // 2
    median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    return f"{median:.4g} ({ordered[0]:.4g} to {ordered[-1]:.4g}, {len(ordered)})"
