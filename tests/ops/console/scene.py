"""A server with traffic, a rollout, a policy in the store, prices and heads, for tests of the console."""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

from fastapi import FastAPI
from sqlalchemy import Connection

from prolepsis import __version__
from prolepsis.control.cost.prices import PriceFile
from prolepsis.control.policy.source import PolicyChange, StoredPolicy
from prolepsis.control.replicas.registry import ReplicaReply, ReplicaTable
from prolepsis.control.rollout.runtime import Rollouts
from prolepsis.control.store.store import Store, open_store
from prolepsis.control.web.caller import Role
from prolepsis.core.config import ServerConfig
from prolepsis.core.engine_client import EngineInfo, InstalledHead
from prolepsis.core.events import Event, Finished, FinishReason, Proposed, Tokens
from prolepsis.core.exact_group import ExactGroup
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.rounds import Round
from prolepsis.core.stats import (
    DeviceSeconds,
    EffectiveMode,
    ProposerCounts,
    ProposerMemory,
    RequestStats,
    TrafficClassCounts,
)
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.server.front.key_file import KeyFile, new_key
from prolepsis.server.front.keys import Keys
from prolepsis.server.known import KNOWN
from tests.control.store.databases import migrated_setting
from tests.fake_client import FakeEngineClient
from tests.server.application import build, feature_of
from tests.server.fakes import ByteTokenizer

CHAT = "chat-completions/standard/free/short/chat"
POLICY = """version: 7
description: Chat on, completions rolled out.
default: {mode: off}
rules:
  - name: regulated
    description: Answers that are audited come from the target alone.
    match: {tenant: [bank]}
    mode: off
    pinned: true
  - name: chat
    match: {route: /v1/chat/completions}
    use: chat
  - name: completions
    match: {route: /v1/completions}
    mode: on
    rollout: {stages: [5, 25, 50], min_stage_s: 60, gate: manual}
    guardrails:
      - {name: acceptance, metric: acceptance_rate, limit: 0.3}
      - {name: cost, metric: cost_per_token, margin: 0.1}
"""
PRICES = "version: 1\ncurrency: EUR\nprices:\n  - {name: cpu, per_device_hour: 1.0, overheads: {power: 0.2}}\n"
INFO = EngineInfo(
    model="tiny",
    forward="native",
    vocab_size=257,
    max_model_len=512,
    fingerprint="fp_scene",
    weights="5f3c9a1e77b0d2c4",
    tokenizer="a81f0c3d92e64b17",
    exactness="strict",
    exactness_reason="each row is summed in one order",
    proposers=("suffix", "prompt_lookup", "draft_head"),
    draft_head="mine@2",
    paying_loads="drafts cannot pay on this model here beyond 24 at once",
)
DAMAGED = "mine@1"
"""A head none of whose drafts is right."""
_FITS = InstalledHead(
    name="mine", version=2, aliases=("champion",), target="tiny", misfit=None, size=10_400_000, chain_of_3=2.24
)
HEADS = (
    InstalledHead(name="mine", version=1, aliases=(), target="tiny", misfit=None, size=10_400_000, chain_of_3=2.07),
    _FITS,
    InstalledHead(
        name="other", version=1, aliases=(), target="big", misfit="trained for big", size=1_000, chain_of_3=None
    ),
)
PATTERN = ((4, 4), (4, 2), (3, 0), (0, 0), (5, 5), (4, 1), (2, 2), (0, 0))
"""Drafted and accepted tokens of a request's steps."""


class SceneEngine(FakeEngineClient):
    """Answers each request by the steps of `PATTERN`, plainly where it may not speculate."""

    def __init__(self) -> None:
        super().__init__(self._say, INFO)
        self.installed = HEADS
        self.step_s = 0.0
        """Time that a step really takes, whatever the figures say."""
        self.memory = (ProposerMemory("draft_head", 10_400_000, 2_000_000), ProposerMemory("suffix", index=4_000_000))
        self.counts = (
            TrafficClassCounts("suffix", CHAT, num_asked=400, num_judged=300, num_right=180, num_rounds=120),
            TrafficClassCounts("draft_head", CHAT, num_asked=900, num_judged=800, num_right=420, num_rounds=300),
        )

    def _say(self, request: GenerateRequest) -> Iterable[Event | float]:
        position, steps = 0, self._steps(request)
        for number, (drafted, accepted) in enumerate(steps):
            last = number + 1 == len(steps)
            proposed = None
            if request.tells_drafts and drafted:
                name = _proposer(number)
                proposed = Proposed(tuple(range(65, 65 + drafted)), tuple(range(-1, drafted - 1)), name)
            part = tuple(97 + (position + i) % 26 for i in range(accepted + 1))
            reason: FinishReason | None = "stop" if last else None
            yield self.step_s
            by = (_proposer(number),) * accepted
            yield Tokens(request.request_id, 0, part, position, None, reason, proposed=proposed, accepted_by=by)
            position += len(part)
        yield Finished(request.request_id, self._stats(request, position))

    def _steps(self, request: GenerateRequest) -> Sequence[tuple[int, int]]:
        return PATTERN if request.speculation.enabled else [(0, 0)] * sum(accepted + 1 for _, accepted in PATTERN)

    def _stats(self, request: GenerateRequest, num_tokens: int) -> RequestStats:
        on = request.speculation.enabled
        spread = 1.0 + 0.1 * (len(self.requests) % 5)
        device = DeviceSeconds(0.01, 0.03 * spread, 0.012 if on else 0.0, 0.006 if on else 0.0, 0.002, 0.08 * spread)
        proposers = {
            "suffix": ProposerCounts(3, 8, 6, [[3, 3], [3, 2], [2, 1]]),
            "draft_head": (
                ProposerCounts(3, 14, 0, [[3, 0]] * 4)
                if self.info.draft_head == DAMAGED
                else ProposerCounts(3, 14, 8, [[3, 2], [3, 2], [3, 2], [3, 1], [2, 1]])
            ),
        }
        return RequestStats(
            num_prompt_tokens=len(request.prompt_token_ids),
            num_cached_tokens=2,
            num_output_tokens=num_tokens,
            num_steps=len(self._steps(request)),
            rounds=list(_rounds(self._steps(request))) if request.keeps_rounds else [],
            proposers=proposers if on else {},
            plain_steps={"no_draft": 1, "not_worth_it": 1} if on else {},
            queue_s=0.004,
            compute_s=device.total,
            first_token_s=0.02 * spread,
            total_s=0.1 * spread,
            device=device,
            mode=EffectiveMode("on", "speculating", 3) if on else EffectiveMode("off", "rule_off", 3),
        )


def _proposer(number: int) -> str:
    return "suffix" if number % 3 == 0 else "draft_head"


def _rounds(steps: Sequence[tuple[int, int]]) -> Iterator[Round]:
    """Yield the rounds of the steps that verified a draft, 10 ms each."""
    position = 0
    for number, (drafted, accepted) in enumerate(steps):
        began, proposer = 0.02 + 0.01 * number, _proposer(number)
        if drafted:
            yield Round(
                began=began,
                ended=began + 0.01,
                propose_s=0.001,
                forward_s=0.006,
                verify_s=0.002,
                sample=0,
                position=position,
                proposer=proposer,
                version="mine@2" if proposer == "draft_head" else "",
                num_nodes=drafted,
                num_draft_tokens=drafted,
                num_accepted=accepted,
                num_emitted=accepted + 1,
            )
        position += accepted + 1


@dataclass(slots=True)
class Scene:
    app: FastAPI
    engine: SceneEngine
    keys: KeyFile
    store: Store
    rollouts: Rollouts

    async def tick(self) -> None:
        for feature in self.app.state.features:
            await feature.tick()


@contextmanager
def scene(folder: Path, *, with_keys: bool = False, grafana_url: str = "none") -> Iterator[Scene]:
    """Give a server whose clocks run when it is served, or by `tick`."""
    (folder / "prices.yaml").write_text(PRICES)
    engine, metrics, keys = SceneEngine(), Metrics(), KeyFile(folder / "keys.json")
    if with_keys:
        keys.add(new_key("acme", roles=("client",))[0])
    store = open_store(migrated_setting(folder), metrics.registry)
    source = StoredPolicy(store.database, KNOWN)
    source.apply(POLICY, PolicyChange("developer", "first", 0))
    source.poll()
    config = ServerConfig(
        controls_file=folder / "controls.json",
        audit_sample=1.0,
        audit_content="tokens",
        region="north",
        grafana_url=grafana_url,
    )
    looked = Keys(keys if with_keys else None, clock=count().__next__)  # it looks at the file each time
    prices = PriceFile(folder / "prices.yaml")
    app = build(config, engine, ByteTokenizer(), metrics, keys=looked, prices=prices, store=store)
    yield Scene(app, engine, keys, store, feature_of(app, Rollouts))
    store.close()


def key_with(scene: Scene, *roles: Role, tenant: str = "acme") -> str:
    record, key = new_key(tenant, roles=roles)
    scene.keys.add(record)
    return key


def add_replica(scene: Scene, name: str, group: ExactGroup, seen_s_ago: Sequence[float] = (0.0,)) -> None:
    """Let the store have seen another server, first and last so many seconds ago."""
    replica = ReplicaReply(
        replica=name,
        here=True,
        address=f"http://{name}.example.org:8000",
        region="north",
        model=INFO.model,
        group=group,
        version=__version__,
        state="ready",
        started_at=0.0,
        seen_s_ago=0.0,
        engines=(),
    )
    for ago in seen_s_ago:
        ReplicaTable(scene.store.database, now=partial(_earlier, ago)).keep(replica)


def _earlier(seconds: float, _: Connection) -> float:
    return time.time() - seconds
