"""The chain on a real engine: from the archive of a head in the store to drafts for users, and out when forgotten."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prolepsis.control.drafts.heads import DraftHeads
from prolepsis.control.learning.machine import SETTLE_S
from prolepsis.control.learning.runtime import LearningFeature
from prolepsis.control.policy.runtime import Policies
from prolepsis.control.rollout.runtime import Rollouts
from prolepsis.control.store.lineage import forget
from prolepsis.control.store.store import Store
from prolepsis.control.store.writer import ItemWriter
from prolepsis.core.config import CANDIDATE_HEAD, LEARNT_HEAD, ServerConfig
from prolepsis.core.learning import tenant_digest
from prolepsis.core.messages import ApplyPlan
from prolepsis.core.plan import SpecPlan
from prolepsis.engine.build import build_engine
from prolepsis.engine.models.heads.aliases import head_folder
from prolepsis.engine.models.heads.exchange import archive_of
from prolepsis.engine.models.heads.registry import find_head, list_heads
from prolepsis.engine.thread import ThreadEngineClient
from prolepsis.training.target import open_target
from tests.control.learning.chain import Sites, pass_stages
from tests.engine.models.random_heads import record_checksum, save_random_head
from tests.exact.oracle import at_any_price
from tests.training.targets import config_of, save_target
from tests.world.site import Site

POLICY = """
rules:
  - name: code
    match: {route: /v1/completions}
    mode: on
    learning: {tenants: [""], stages: [50]}
"""


class LearningSite(Site):
    """A server in development mode whose rule learns, and a head that was trained for it on another machine."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "here" / "models"
        self.target = open_target(str(save_target(folder / "target")))
        changes = {"proposers": ("suffix",), "draft_head": "none", "model_dir": self.root}
        config = config_of(folder / "target").model_copy(update=changes)
        engine = at_any_price(build_engine(config))
        engine.send(ApplyPlan(SpecPlan(fixed_depth=4)))
        self.client_of_engine = ThreadEngineClient(engine)
        self.sites = Sites(folder / "shared")
        store = Store(self.sites.database, ItemWriter())
        super().__init__(
            self.client_of_engine, ServerConfig(), folder=folder, policy=POLICY, store=store, settings=config
        )

    @property
    def installed(self) -> list[str]:
        return [entry.label for entry in list_heads(self.root) if not entry.shipped]

    def train(self, label: str, folder: Path) -> None:
        said = {"manifests": ["9f31"], "serves": [tenant_digest("")], "target_fingerprint": self.target.identity}
        home = save_random_head(head_folder(folder / "models") / label, self.target.shape, said)
        record_checksum(home)
        entry = find_head(label, folder / "models")
        weights = {"target": self.target.identity, "sha256": entry.provenance.sha256, "archive": archive_of(entry)}
        self.sites.train(label, tenant="", **weights)

    async def follow(self) -> None:
        for _ in range(2):
            await self.tick("policy", "rollout", "learning")

    async def answer(self) -> list[int]:
        body: dict[str, Any] = {"prompt": [*range(3, 40)], "max_tokens": 24, "temperature": 0.0}
        reply = await self.post("/v1/completions", model="target", **body, ignore_eos=True, return_token_ids=True)
        tokens: list[int] = reply.json()["choices"][0]["token_ids"]
        return tokens


async def test_a_head_comes_from_the_store_drafts_wins_and_leaves_when_it_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shared").mkdir()
    site = LearningSite(tmp_path)
    monkeypatch.setattr(site.feature(DraftHeads), "_prompts", lambda: [(3, 4, 5)])  # the shipped ones take seconds
    client, learning = site.client_of_engine, site.feature(LearningFeature)
    try:
        await site.follow()
        plain = await site.answer()
        assert await learning.begin(await learning.read(), "code", "hand", "a test")
        site.train("code@1", tmp_path / "elsewhere")
        await site.follow()
        assert client.info.heads == {CANDIDATE_HEAD: "code@1"}
        await pass_stages(site.feature(Rollouts))
        await site.follow()
        assert site.sites.run.phase == "settling"
        for _ in range(16):  # each is drawn for the canary with a chance of one half
            assert await site.answer() == plain
        assert CANDIDATE_HEAD in {counts.proposer for counts in client.proposer_counts()}
        run = site.sites.run
        assert site.sites.runs.swap(replace(run, since=run.since - SETTLE_S))
        await site.follow()
        assert (site.sites.run.outcome, client.info.heads) == ("promoted", {LEARNT_HEAD: "code@1"})
        assert site.installed == ["code@1"]
        assert await site.answer() == plain
        assert LEARNT_HEAD in {counts.proposer for counts in client.proposer_counts()}
        forgotten = forget(site.sites.database, tenant="")
        assert forgotten.retired == ("code@1",)
        await site.follow()
        assert (site.sites.run.outcome, client.info.heads) == ("forgotten", {})
        assert site.installed == []
        assert await site.answer() == plain
        assert site.feature(Policies).terms["code"].proposers is None
    finally:
        await client.close()
