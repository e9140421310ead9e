"""A server with a real engine whose head was exchanged for a damaged one: docs/how-to/first-incident.md."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

import httpx2
from fastapi import FastAPI

from prolepsis.control.store.store import Store, open_store
from prolepsis.control.traffic.feature import TrafficFeature
from prolepsis.control.web.caller import Role
from prolepsis.core.config import ServerConfig
from prolepsis.core.messages import ApplyPlan
from prolepsis.core.plan import SpecPlan
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.engine.build import assemble
from prolepsis.engine.models.heads.base import DraftHead
from prolepsis.engine.models.heads.registry import head_for
from prolepsis.engine.models.targets.native import NativeModel
from prolepsis.engine.thread import ThreadEngineClient
from prolepsis.server.front.key_file import KeyFile, new_key
from prolepsis.server.front.keys import Keys
from tests.control.store.databases import migrated_setting
from tests.engine.models.random_heads import record_checksum, save_random_head
from tests.exact.oracle import CONFIG, PROMPT, Oracle, at_any_price, plain, target
from tests.ops.console.served import served
from tests.server.application import build
from tests.server.fakes import ByteTokenizer

GOOD, DAMAGED = "chat@4", "chat@5"
TRAFFIC_CLASS = "completions/standard/free/short"
DEEP = SpecPlan(fixed_depth=3)
"""Drafts although a pass of a tiny model takes less time than they do."""
REASON = "the head of last night's training"
ASKED = {"model": "tiny", "prompt": list(PROMPT), "temperature": 0.0, "ignore_eos": True}


@dataclass(slots=True)
class Incident:
    url: str
    app: FastAPI
    store: Store
    keys: KeyFile
    http: httpx2.Client
    """Of a client and operator, who is the one to make the mistake."""

    def key(self, *roles: Role) -> str:
        record, key = new_key("on-call", roles=roles)
        self.keys.add(record)
        return key

    def requests(self, number: int, max_tokens: int = 3) -> None:
        """Serve so many requests; at three tokens each has one draft, so that no breaker opens soon."""
        for _ in range(number):
            self.http.post("/v1/completions", json={**ASKED, "max_tokens": max_tokens}).raise_for_status()

    def swap(self, head: str) -> None:
        self.http.put("/admin/heads", json={"head": head, "reason": REASON}).raise_for_status()
        assert self.store.writer.flush(20.0)

    def set_clock(self, now: Callable[[], float]) -> None:
        """Let the requests that end count for another time."""
        [feature] = [one for one in self.app.state.features if isinstance(one, TrafficFeature)]
        feature.now = now


@contextmanager
def incident(folder: Path) -> Iterator[Incident]:
    """Give a server that serves with a head that knows the answers, beside which a damaged one is installed."""
    metrics, keys = Metrics(), KeyFile(folder / "keys.json")
    store = open_store(migrated_setting(folder), metrics.registry)
    record, key = new_key("release", roles=("client", "operator"), note="release pipeline")
    keys.add(record)
    config = ServerConfig(controls_file=folder / "controls.json", audit_sample=0.0)
    looked = Keys(keys, clock=count().__next__)
    app = build(config, _engine(folder), ByteTokenizer(), metrics, keys=looked, base_plan=DEEP, store=store)
    headers = {"authorization": f"Bearer {key}"}
    with served(app) as url, httpx2.Client(base_url=url, headers=headers, timeout=30.0) as http:
        yield Incident(url, app, store, keys, http)
    store.close()


def _engine(folder: Path) -> ThreadEngineClient:
    model = target().model
    assert isinstance(model, NativeModel)
    for name in (GOOD, DAMAGED):
        provenance = {"target_fingerprint": target().identity, "target": "tiny"}
        record_checksum(save_random_head(folder / "heads" / name, model.shape, provenance))
    root = folder / "models"
    good = Oracle([(*PROMPT, *plain("greedy")[0])], GOOD)
    config = CONFIG.model_copy(update={"kv_memory": "2MiB", "max_requests": 8, "model_dir": root})
    find = partial(_head, good, root)
    client = ThreadEngineClient(at_any_price(assemble(config, target(), head=good, find_head=find)))
    client.send(ApplyPlan(DEEP))
    return client


def _head(good: DraftHead, root: Path, name: str) -> DraftHead | None:
    """Return the head that knows the answers in place of the file of that name; the damaged one is the file's."""
    return good if name == GOOD else head_for(name, target=target(), root=root)
