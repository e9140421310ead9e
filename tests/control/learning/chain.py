"""Servers of one store that learn, with fakes for engine, folder of heads and training process, and a clock by hand."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from subprocess import Popen
from typing import Any, cast

from prolepsis.control.drafts.heads import DraftHeads
from prolepsis.control.health.drift import Key
from prolepsis.control.learning.following import HeadFolder
from prolepsis.control.learning.machine import Evaluated, Taken, step
from prolepsis.control.learning.routes import learning_routes
from prolepsis.control.learning.runtime import LearningFeature
from prolepsis.control.policy.runtime import Policies
from prolepsis.control.policy.source import PolicyFile
from prolepsis.control.rollout.runtime import Rollouts
from prolepsis.control.rollout.store import RolloutStore
from prolepsis.control.store.database import Database
from prolepsis.control.store.lineage import LineageTable, RunTable
from prolepsis.control.store.migrate import migrated_in_memory
from prolepsis.control.store.store import Store
from prolepsis.control.store.writer import ItemWriter
from prolepsis.control.web.context import Context
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.config import ServerConfig
from prolepsis.core.engine_client import EngineHealth, InstalledHead
from prolepsis.core.events import Finished
from prolepsis.core.learning import DatasetManifest, HeadLineage, LearningRun, tenant_digest
from prolepsis.core.reasons import Judge
from prolepsis.core.stats import RequestStats
from prolepsis.core.telemetry.metrics import Metrics
from tests.clock import Clock
from tests.fake_client import INFO, FakeEngineClient

POLICY = """
rules:
  - name: code
    match: {tenant: acme}
    mode: on
    learning: {tenants: [acme], stages: [10, 50]}
"""
IDLE = EngineHealth(alive=True, ready=True, detail="")


class FakeProcess:
    def __init__(self) -> None:
        self.status: int | None = None

    def poll(self) -> int | None:
        return self.status

    def terminate(self) -> None:
        self.status = -15

    def wait(self, timeout: float | None = None) -> int:
        return self.status or 0


class FakeFolder(HeadFolder):
    """The heads that are installed on a machine; `client` lists them."""

    def __init__(self, client: FakeEngineClient) -> None:
        self.client = client
        self.aliases: dict[str, str] = {}

    def install(self, label: str, archive: bytes, alias: str) -> None:
        self.aliases[alias] = label
        name, version = label.split("@")
        known = [head for head in self.client.installed if head.label != label]
        head = InstalledHead(
            name=name, version=int(version), aliases=(), target="tiny", misfit=None, size=1, chain_of_3=None
        )
        self.client.installed = [*known, head]

    def remove(self, label: str, sha256: str) -> None:
        self.client.installed = [head for head in self.client.installed if head.label != label]


@dataclass
class Server:
    site: "Sites"
    weights: str = "aa00"
    against: list[tuple[Key, Judge, str]] = field(default_factory=list)
    processes: list[FakeProcess] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.client = FakeEngineClient(
            lambda request: [Finished(request.request_id, RequestStats())],
            replace(INFO, weights=self.weights, tokenizer="t"),
        )
        self.client.reported = IDLE
        self.metrics = Metrics()
        database, clock = self.site.database, self.site.clock
        context = Context(
            config=ServerConfig(),
            client=self.client,
            metrics=self.metrics,
            store=Store(database, ItemWriter()),
            emit=self.site.emit,
            clock=clock,
            monotonic=clock,
            wall=clock,
        )
        self.rollouts = Rollouts(
            RolloutStore(database, clock), self.client.send, self.metrics.registry, model="tiny", clock=clock
        )
        self.policies = Policies(PolicyFile(self.site.policy), self.client.info.proposers, self.rollouts)
        self.folder = FakeFolder(self.client)
        self.learning = LearningFeature(
            context,
            self.policies,
            self.rollouts,
            DraftHeads(self.client, lambda: [(1, 2)], emit=self.site.emit),
            folder=self.folder,
            start=self._start,
            against=lambda: self.against,
            targets=lambda: self.site.targets,
            now=clock,
        )
        self.learning.routes = learning_routes(self.learning)

    def _start(self, run: LearningRun) -> "Popen[bytes]":
        self.processes.append(FakeProcess())
        return cast("Popen[bytes]", self.processes[-1])

    async def tick(self) -> None:
        """Let policy, rollouts and learning do what is due."""
        await self.policies.tick()
        await self.rollouts.tick()
        await self.learning.tick()

    @property
    def slots(self) -> dict[str, str]:
        return self.client.info.heads

    @property
    def proposers(self) -> tuple[str, ...] | None:
        return self.policies.terms["code"].proposers


@dataclass
class Sites:
    """What the servers share."""

    folder: Path
    database: Database = field(default_factory=migrated_in_memory)
    clock: Clock = field(default_factory=lambda: Clock(1_000_000.0))
    events: list[AuditEvent] = field(default_factory=list)
    targets: Collection[str] = ("aa00",)

    def __post_init__(self) -> None:
        self.policy = self.folder / "policy.yaml"
        self.policy.write_text(POLICY)
        self.runs, self.lineage = RunTable(self.database, self.clock), LineageTable(self.database, self.clock)

    def emit(self, event: AuditEvent) -> None:
        """Keep an event once, as the audit log does."""
        if all(event.uid != known.uid for known in self.events):
            self.events.append(event)

    @property
    def acts(self) -> list[str]:
        return [event.action for event in self.events if event.action.startswith("learning.")]

    @property
    def run(self) -> LearningRun:
        return self.runs.read()

    def head(
        self, label: str, *, target: str = "aa00ff", archive: bytes = b"weights", tenant: str = "acme", **changes: Any
    ) -> None:
        """Keep a head that learnt from a tenant, as a process that trains does."""
        manifest = DatasetManifest(
            rule="code",
            made_at=self.clock.now,
            first_at=0.0,
            last_at=self.clock.now,
            target=target,
            tokenizer="",
            filters={},
            examples={tenant_digest(tenant): ("9f" * 8,)},
            held_out_from=0.0,
            base="",
        )
        key = self.lineage.add_dataset(manifest)
        lineage = HeadLineage(
            rule="code",
            parent="",
            manifests=(key,),
            serves=(),
            sha256="00",
            made_at=self.clock.now,
            evaluation={"first": [0.4, 0.5], "own": {"estimate": 1.13, "lower": 1.09, "upper": 1.2}},
        )
        self.lineage.add_head(label, replace(lineage, **changes))
        self.lineage.put_weights(label, archive)

    def train(self, label: str, **head: Any) -> None:
        """Do what the process of the run does, to a head that passed."""
        taken, _ = step(self.run, Taken("gpu-1", self.clock.now + 300.0), self.clock.now)
        assert self.runs.swap(taken)
        self.head(label, **head)
        tried, _ = step(self.run, Evaluated(label), self.clock.now)
        assert self.runs.swap(tried)

    async def pass_stages(self, server: Server) -> None:
        await pass_stages(server.rollouts)


async def pass_stages(rollouts: Rollouts) -> None:
    """Promote the trial's rollout through all stages, by hand."""
    state = rollouts.state("code")
    assert state is not None
    while state.phase != "on":
        await rollouts.command(state.rollout_id, "promote", "a test", force=True)
        state = rollouts.state("code")
        assert state is not None
