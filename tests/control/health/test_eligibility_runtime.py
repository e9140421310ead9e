"""Eligibility while serving: drafts are compared until they have shown enough, and verified from then on."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from prolepsis.control.cost.prices import PriceFile
from prolepsis.control.store.store import Store
from prolepsis.core.config import LimitTerms, ServerConfig
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.server.openai.replies import MetricsReply
from tests.fake_client import INFO
from tests.server.application import build
from tests.server.fakes import ByteTokenizer, FakeEngine

RULE = (
    "rules: [{{name: chat, match: {{}}, mode: on, eligible_while: {{acceptance_rate: {{min: {0}, until: {0}}}}}{1}}}]"
)
TRAFFIC_CLASS = "chat-completions/standard/free/short"
NEEDED = 22
"""Requests of the fake engine, which makes three drafts in each and has half of their tokens accepted."""


class EligibilityApp:
    """An application over a fake engine, with a policy if there is a text."""

    def __init__(
        self,
        folder: Path,
        policy: str | None = None,
        *,
        config: ServerConfig | None = None,
        engine: FakeEngine | None = None,
        prices: PriceFile | None = None,
        store: Store | None = None,
    ) -> None:
        self.engine = engine or FakeEngine()
        metrics = Metrics()
        if policy is not None:
            (folder / "policy.yaml").write_text(policy)
        file = None if policy is None else folder / "policy.yaml"
        config = config or ServerConfig(limits=LimitTerms(start_drafts=0))
        app = build(config, self.engine, ByteTokenizer(), metrics, policy=file, prices=prices, store=store)
        self.features = [one for one in app.state.features if one.name in ("policy", "health", "learned")]
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")

    async def ask(self, **speculation: object) -> httpx.Response:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "speculation": speculation}
        reply = await self.http.post("/v1/chat/completions", json=body)
        assert reply.status_code == 200, reply.text
        return reply

    async def tick(self) -> None:
        for feature in self.features:
            await feature.tick()

    async def shown(self) -> dict[str, Any]:
        return dict((await self.http.get("/admin/health")).json()["eligibility"])

    async def modes(self, number: int) -> Sequence[str]:
        """Return the mode of each of so many requests."""
        for _ in range(number):
            await self.ask()
        return [request.speculation.mode for request in self.engine.requests[-number:]]


async def test_drafts_are_compared_until_they_have_shown_enough(tmp_path: Path) -> None:
    app = EligibilityApp(tmp_path, RULE.format(0.5, ""))
    first = await app.ask(metrics=True)
    assert ";limit=unmeasured" in first.headers["x-spec-effective"]
    shown = first.json()["metrics"]
    assert shown["effective"]["limits"] == ["unmeasured"]
    MetricsReply.model_validate(shown)
    texts = {first.json()["choices"][0]["message"]["content"]}
    assert await app.modes(NEEDED) == ["shadow"] * (NEEDED - 1) + ["auto"]
    later = await app.ask()
    assert "limit=" not in later.headers["x-spec-effective"]
    assert texts == {later.json()["choices"][0]["message"]["content"]}
    document = (await app.http.get("/admin/health")).json()["eligibility"]
    [held] = document["conditions"]
    assert (held["traffic_class"], held["eligible"], held["value"]) == (f"{TRAFFIC_CLASS}/chat", True, 0.5)
    [figures] = document["figures"]
    assert (figures["proposer"], figures["num_drafts"]) == ("suffix", 3 * (NEEDED + 2))


async def test_an_edit_of_the_thresholds_takes_the_old_conditions_away_and_no_others(tmp_path: Path) -> None:
    app = EligibilityApp(tmp_path, RULE.format(0.5, ""))
    await app.modes(NEEDED)
    before = await app.shown()
    (tmp_path / "policy.yaml").write_text(RULE.format(0.5, ", num_speculative_tokens: 3"))
    await app.tick()
    assert await app.shown() == before, "an edit elsewhere"
    (tmp_path / "policy.yaml").write_text(RULE.format(0.6, ""))
    await app.tick()
    assert (await app.shown())["conditions"] == []
    assert await app.modes(1) == ["shadow"]
    shown = await app.shown()
    assert [(one["min"], one["eligible"]) for one in shown["conditions"]] == [(0.6, False)]
    assert shown["figures"][0]["num_drafts"] == 3 * (NEEDED + 1), "what was measured stays"


async def test_a_restart_goes_on_with_what_was_learned(tmp_path: Path, store: Store) -> None:
    app = EligibilityApp(tmp_path, RULE.format(0.5, ""), store=store)
    await app.tick()
    assert await app.modes(NEEDED + 1) == ["shadow"] * NEEDED + ["auto"]
    before = await app.shown()
    for feature in app.features:
        await feature.close()
    again = EligibilityApp(tmp_path, RULE.format(0.5, ""), store=store)
    await again.tick()
    assert await again.shown() == before
    assert await again.modes(1) == ["auto"]


async def test_low_acceptance_stays_in_shadow_or_plain_as_the_share_says(tmp_path: Path) -> None:
    app = EligibilityApp(tmp_path, RULE.format(0.6, ""))
    assert await app.modes(2 * NEEDED) == ["shadow"] * 2 * NEEDED
    assert ";limit=low_acceptance" in (await app.ask()).headers["x-spec-effective"]
    app = EligibilityApp(tmp_path, RULE.format(0.6, ", shadow_percentage: 0"))
    assert await app.modes(2) == ["off", "off"]
    assert app.engine.requests[-1].speculation.off_reason == "not_eligible"
    await app.ask(mode="always")
    assert app.engine.requests[-1].speculation.mode == "always", "an operator may"
    assert "limit=" not in (await app.ask(mode="off")).headers["x-spec-effective"]


async def test_a_fresh_server_drafts_little_at_first_with_and_without_a_policy(tmp_path: Path) -> None:
    for policy in (None, "default: {mode: on}"):
        app = EligibilityApp(tmp_path, policy, config=ServerConfig())
        assert ";limit=conservative_start" in (await app.ask()).headers["x-spec-effective"]
        await app.ask(max_depth=2)
        await app.ask(mode="always", max_depth=9)
        await app.ask(mode="shadow")
        await app.modes(NEEDED)
        ceilings = [request.speculation.num_speculative_tokens for request in app.engine.requests]
        assert ceilings[:4] == [4, 2, 9, None]
        assert ceilings[4:] == [4] * (NEEDED - 3) + [None] * 3
    app = EligibilityApp(tmp_path, "default: {mode: on, start: {num_speculative_tokens: 1, num_drafts: 3}}")
    await app.modes(2)
    assert [request.speculation.num_speculative_tokens for request in app.engine.requests] == [1, None]


@pytest.mark.parametrize("policy", [None, "default: {mode: on}"])
async def test_a_mixture_of_experts_is_measured_in_shadow_first(tmp_path: Path, policy: str | None) -> None:
    engine = FakeEngine(info=replace(INFO, num_experts=8))
    app = EligibilityApp(tmp_path, policy, engine=engine)
    assert ";limit=unmeasured_experts" in (await app.ask()).headers["x-spec-effective"]
    assert await app.modes(NEEDED) == ["shadow"] * (NEEDED - 1) + ["auto"]


async def test_a_saving_is_asked_for_where_device_time_is_billed(tmp_path: Path) -> None:
    rule = "default: {mode: on, eligible_while: {saving_per_million_tokens: {min: 0.1}}}"
    for term, modes in (("reserved", ["auto"] * 30), ("on_demand", ["shadow"] * 30)):  # the fake engine saves nothing
        book = f"currency: EUR\nprices: [{{name: a, per_device_hour: 1, term: {term}}}]"
        (tmp_path / "prices.yaml").write_text(book)
        app = EligibilityApp(tmp_path, rule, prices=PriceFile(tmp_path / "prices.yaml"))
        assert await app.modes(30) == modes
    assert ";limit=no_saving" in (await app.ask()).headers["x-spec-effective"]


async def test_requests_that_are_not_eligible_are_no_evidence_in_any_arm(tmp_path: Path) -> None:
    rollout = (
        ", rollout: {gate: automatic, step_weights: [50]}, guardrails: [{name: e, metric: error_rate, limit: 0.5}]"
    )
    app = EligibilityApp(tmp_path, RULE.format(0.9, rollout))
    [live] = (await app.http.get("/admin/rollouts")).json()["rollouts"]
    await app.http.post(f"/admin/rollouts/{live['id']}/start", json={})
    modes = set(await app.modes(60))
    assert modes == {"shadow", "off"}
    [live] = (await app.http.get("/admin/rollouts")).json()["rollouts"]
    assert (live["num_canary"], live["num_control"]) == (0, 0)
