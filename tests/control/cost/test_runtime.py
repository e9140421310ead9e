"""What requests cost while serving: sums, money by the price book, comparisons by the arms of a rollout."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx2
import pytest
from msgspec import structs
from prometheus_client import CollectorRegistry

from prolepsis.control.audit import chain
from prolepsis.control.cost.history import stored_periods, stored_prices
from prolepsis.control.cost.prices import PriceFile
from prolepsis.control.cost.runtime import CostFeature
from prolepsis.control.store.migrate import migrated_in_memory
from prolepsis.control.store.store import Store
from prolepsis.core.config import ServerConfig
from prolepsis.core.errors import StoreUnavailable
from prolepsis.core.events import Event, Terminal
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.stats import DeviceSeconds, EffectiveMode, ProposerMemory
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.server.front.key_file import KeyFile, new_key
from prolepsis.server.front.keys import Keys
from tests.clock import Clock
from tests.control.store.fakes import latest_records
from tests.ops.tracing.ended import prompt_ended, request_ended
from tests.server.fakes import FakeEngine
from tests.world.site import Site

BOOK = """
version: "1"
currency: EUR
prices: [{name: a, per_device_hour: 3.0, overheads: {power: 0.6}, memory_gib: 10}]
"""
POLICY = """
default:
  mode: on
  rollout: {stages: [50], holdout: 50, gate: automatic}
  guardrails: [{name: cost, metric: cost_per_token, margin: 0.1}]
"""
BODY = {"model": "tiny", "prompt": "Hi", "max_tokens": 4}
PLAIN_S, SPECULATING_S = 0.08, 0.05


class Charging(FakeEngine):
    """A request takes 80 ms of the device, 50 where it may speculate."""

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        async for event in super().generate(request):
            if isinstance(event, Terminal):
                on = request.speculation.enabled
                device = DeviceSeconds(plain=SPECULATING_S - 0.01 if on else PLAIN_S, verify=0.01 if on else 0.0)
                stats = replace(event.stats, device=replace(device, predicted_plain=PLAIN_S))
                if not on:
                    stats.proposers = {}
                    stats.mode = EffectiveMode("off", request.speculation.off_reason, 1)
                event = structs.replace(event, stats=stats)  # noqa: PLW2901
            yield event

    def proposer_memory(self) -> Sequence[ProposerMemory]:
        return [ProposerMemory("draft_head", weights=2**30, kv=2**29), ProposerMemory("suffix", index=2**20)]


def served(folder: Path, *, book: str = "", **parts: Any) -> Site:
    if book:
        (folder / "prices.yaml").write_text(book)
        parts["prices"] = PriceFile(folder / "prices.yaml")
    return Site(Charging(), ServerConfig(controls_file=folder / "controls.json"), folder=folder, **parts)


async def costs_of(http: httpx2.AsyncClient) -> Any:
    """Return what /admin/cost replies; its fields are attributes."""
    return json.loads((await http.get("/admin/cost")).text, object_hook=lambda fields: SimpleNamespace(**fields))


async def test_without_prices_there_are_device_seconds_and_no_money(tmp_path: Path) -> None:
    async with served(tmp_path).http as http:
        for _ in range(3):
            assert (await http.post("/v1/completions", json=BODY)).status_code == 200
        found = await costs_of(http)
    assert found.price is None
    assert found.forecast is None
    assert (found.total.num_requests, found.total.num_output_tokens) == (3, 12)
    assert found.total.total_device_s == pytest.approx(3 * SPECULATING_S)
    assert found.total.device_s.verify == pytest.approx(0.03)
    assert found.total.amount is None
    assert found.total.saved_s == pytest.approx(3 * (PLAIN_S - SPECULATING_S))
    assert [(one.value, one.num_requests) for one in found.by_route] == [("/v1/completions", 3)]
    assert [one.value for one in (*found.by_tenant, *found.by_proposer)] == ["default", "suffix"]
    assert found.rollouts == []
    assert [(one.proposer, one.total, one.amount_per_hour) for one in found.memory] == [
        ("draft_head", 3 * 2**29, None),
        ("suffix", 2**20, None),
    ]


async def test_prices_turn_seconds_and_memory_into_money(tmp_path: Path) -> None:
    site = served(tmp_path, book=BOOK)
    async with site.http as http:
        await http.post("/v1/completions", json=BODY)
        found = await costs_of(http)
    assert found.price is not None
    assert found.price.currency == "EUR"
    assert found.price.per_hour == pytest.approx(3.6)
    assert found.total.amount == pytest.approx(SPECULATING_S * 0.001)
    assert found.memory[0].amount_per_hour == pytest.approx(3.6 * 0.15)
    text = site.metrics.exposition().decode()
    assert 'prolepsis_price_per_device_second{currency="EUR",price="a",version="1@' in text
    labels = 'arm="none",proposer="suffix",route="/v1/completions",tenant="default"'
    assert f"prolepsis_request_device_seconds_total{{{labels}}} 0.05" in text
    assert f"prolepsis_request_output_tokens_total{{{labels}}} 4.0" in text


TAGGED = f"""{BOOK}
tags: [search, team-a, batch]
revenue: {{team-a: {{prompt: 100, output: 1000}}, batch: {{output: 1}}}}
"""


async def test_cost_and_revenue_are_summed_by_tag_and_by_key(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys.json")
    record, key = new_key("acme", roles=["client", "viewer"])
    file.add(record)
    site = served(tmp_path, book=TAGGED, keys=Keys(file))
    bodies: list[dict[str, Any]] = [
        {"metadata": {"tags": "search, team-a"}},
        {"metadata": {"tags": ["team-a", "batch"]}},
        {"metadata": {"tags": "unlisted"}},
        {},
    ]
    async with site.client(authorization=f"Bearer {key}") as http:
        for body in bodies:
            assert (await http.post("/v1/completions", json=BODY | body)).status_code == 200
        headers = {"x-litellm-tags": "search,search"}
        assert (await http.post("/v1/completions", json=BODY, headers=headers)).status_code == 200
        found = await costs_of(http)
    of_one = (100 * 2 + 1000 * 4) / 1e6
    by_tag = {one.value: (one.num_requests, one.revenue and round(one.revenue, 9)) for one in found.by_tag}
    assert by_tag == {
        **{"search": (2, of_one), "team-a": (2, 2 * of_one), "batch": (1, of_one)},
        **{"other": (1, None), "none": (1, None)},
    }
    [by_key] = found.by_key
    assert (by_key.value, by_key.num_requests, by_key.amount) == (
        record.id,
        5,
        pytest.approx(5 * SPECULATING_S * 0.001),
    )
    assert by_key.revenue == found.total.revenue == pytest.approx(2 * of_one)
    assert key not in json.dumps(found, default=vars)
    assert site.sample("tag_device_seconds_total", tag="team-a") == pytest.approx(2 * SPECULATING_S)
    assert site.sample("revenue_total", tag="team-a") == pytest.approx(2 * of_one)
    assert site.sample("revenue_total", tag="batch") is None, "a request is charged once"


async def test_a_request_that_the_server_failed_is_not_charged(tmp_path: Path) -> None:
    site = served(tmp_path, book=TAGGED)
    failed = prompt_ended(end="failed")
    failed.stats.device = DeviceSeconds(plain=PLAIN_S)
    ended = request_ended(failed)
    site.feature(CostFeature).on_request_end(replace(ended, about=replace(ended.about, tags=("team-a",))))
    [tagged] = site.feature(CostFeature).usage.of("tag")
    assert (tagged.value, tagged.num_requests, tagged.revenue) == ("team-a", 1, None)


async def test_without_listed_tags_nothing_is_summed_by_them(tmp_path: Path) -> None:
    async with served(tmp_path, book=BOOK).http as http:
        await http.post("/v1/completions", json=BODY | {"metadata": {"tags": "search"}})
        assert (await http.post("/v1/completions", json=BODY | {"metadata": {"tags": [1]}})).status_code == 400
        found = await costs_of(http)
    assert (found.by_tag, [one.value for one in found.by_key]) == ([], ["none"])


async def test_arms_of_a_rollout_are_compared(tmp_path: Path) -> None:
    async with served(tmp_path, policy=POLICY).http as http:
        await http.get("/admin/rollouts")
        [rollout] = (await http.get("/admin/rollouts")).json()["rollouts"]
        await http.post(f"/admin/rollouts/{rollout['id']}/start", json={})
        for _ in range(300):
            assert (await http.post("/v1/completions", json=BODY)).status_code == 200
        found = await costs_of(http)
        again = await costs_of(http)
    [compared] = found.rollouts
    assert again.rollouts == found.rollouts
    assert (compared.rollout, compared.share) == (rollout["id"], 0.5)
    every = compared.groups[0]
    assert every.device_s_per_token == pytest.approx(SPECULATING_S / 4)
    assert every.control_device_s_per_token == pytest.approx(PLAIN_S / 4)
    saved = 1 - SPECULATING_S / PLAIN_S
    for saving in (every.saved, every.saved_by_prediction):
        assert saving.estimate == pytest.approx(saved, abs=0.01)
        assert saving.lower is not None
        assert 0.0 < saving.lower < saved
    assert {(one.by, one.value, one.randomised) for one in compared.groups[1:]} == {
        ("route", "/v1/completions", True),
        ("tenant", "default", True),
        ("rule", "default", True),
        ("proposer", "suffix", False),
    }


async def test_prompts_that_share_a_draw_cost_and_are_not_compared(tmp_path: Path) -> None:
    async with served(tmp_path, policy=POLICY).http as http:
        [rollout] = (await http.get("/admin/rollouts")).json()["rollouts"]
        await http.post(f"/admin/rollouts/{rollout['id']}/start", json={})
        assert (await http.post("/v1/completions", json={**BODY, "prompt": ["a", "b"]})).status_code == 200
        found = await costs_of(http)
    assert (found.total.num_requests, found.rollouts) == (2, [])


async def test_an_edited_book_counts_and_a_broken_one_does_not(tmp_path: Path) -> None:
    metrics = Metrics()
    path = tmp_path / "prices.yaml"
    path.write_text(BOOK)
    costs = CostFeature(metrics.registry, migrated_in_memory(), prices=PriceFile(path))
    path.write_text("currency: nothing")
    await costs.tick()
    assert costs.price is not None
    assert costs.price.per_device_hour == 3.0
    path.write_text(BOOK.replace("3.0", "5.0"))
    await costs.tick()
    assert costs.price.per_device_hour == 5.0
    text = metrics.exposition().decode()
    assert "prolepsis_price_book_refused_total 1.0" in text
    assert text.count("prolepsis_price_per_device_second{") == 1


async def test_an_edited_book_changes_no_amount_of_the_past(tmp_path: Path) -> None:
    async with served(tmp_path, book=BOOK).running() as http:
        await http.post("/v1/completions", json=BODY)
        before = await costs_of(http)
        (tmp_path / "prices.yaml").write_text(BOOK.replace("3.0", "6.6"))
        for _ in range(200):
            after = await costs_of(http)
            if len(after.periods) == 2:
                break
            await asyncio.sleep(0.05)
    assert after.price is not None
    assert after.price.per_hour == pytest.approx(7.2)
    assert before.total.amount == after.total.amount == pytest.approx(SPECULATING_S * 0.001)
    assert after.device.amount_used == pytest.approx(after.total.amount)
    assert [one.num_output_tokens for one in after.periods] == [0, 4]
    assert after.device.used_per_million_tokens == pytest.approx(SPECULATING_S / 4 * 1000)


async def test_books_that_were_used_and_device_seconds_are_on_record(tmp_path: Path, store: Store) -> None:
    async with served(tmp_path, book=BOOK, store=store).running() as http:
        await http.post("/v1/completions", json=BODY)
        for _ in range(100):
            with store.database.read() as connection:
                books = stored_prices(connection, 10)
            if books:
                break
            await asyncio.sleep(0.05)
    assert store.writer.flush(20.0)
    with store.database.read() as connection:
        [record] = latest_records(connection, 10)
        actions = [entry.action for entry in chain.entries(connection)]
        [period] = stored_periods(connection, 10)
    assert (period.price, period.num_output_tokens) == (f"{books[0].version}/a", 4)
    assert (period.amount_used, period.used_s) == pytest.approx((SPECULATING_S * 0.001, SPECULATING_S))
    assert (record.device_verify_s, record.predicted_plain_s) == (0.01, PLAIN_S)
    assert record.prices_version == f"{books[0].version}/a"
    assert "prices.loaded" in actions


async def test_the_records_of_a_rollout_make_a_pilot_report(tmp_path: Path, store: Store) -> None:
    async with served(tmp_path, policy=POLICY, book=BOOK, store=store).http as http:
        [rollout] = (await http.get("/admin/rollouts")).json()["rollouts"]
        await http.post(f"/admin/rollouts/{rollout['id']}/start", json={})
        for _ in range(200):
            assert (await http.post("/v1/completions", json=BODY)).status_code == 200
        await http.post("/v1/completions", json={**BODY, "prompt": ["a", "b"]})
        assert store.writer.flush(20.0)
        [found] = (await http.get("/admin/verdicts", params={"since": "2026-01-01T00:00:00Z"})).json()["reports"]
        assert (await http.get("/admin/verdicts")).json()["reports"] == [], "a period has a beginning"
    assert (found["num_requests"], found["rollout"], found["share"]) == (202, f"{rollout['id']}#1", 0.5)
    costs = {one["figure"]: one for one in found["figures"] if one["figure"].startswith("cost")}
    device, money = costs["cost of a million tokens (device s)"], costs["cost of a million tokens (EUR)"]
    assert device["num_canary"] + device["num_control"] == 200
    assert device["canary"]["estimate"] == pytest.approx(1e6 * SPECULATING_S / 4)
    assert money["control"]["estimate"] == pytest.approx(1e6 * PLAIN_S / 4 * 0.001)
    assert device["change"]["lower"] < SPECULATING_S / PLAIN_S - 1 < device["change"]["upper"] < 0.0
    assert any(text.startswith("200 of 202 requests are compared") for text in found["limits"])


async def test_the_history_fills_while_the_server_runs(store: Store) -> None:
    """An operator who asked in the first hour got an empty table."""
    clock, now = Clock(0.0), Clock(10_000.0)
    costs = CostFeature(CollectorRegistry(), store.database, clock=clock, now=now)

    async def after(seconds: float) -> dict[float, float]:
        clock.now, now.now = clock.now + seconds, now.now + seconds
        await costs.tick()
        with store.database.read() as connection:
            return {one.started_at: one.held_s for one in stored_periods(connection, 10)}

    assert await after(30.0) == {}
    assert await after(30.0) == {10_000.0: 60.0}
    assert await after(30.0) == {10_000.0: 60.0}
    assert await after(60.0) == {10_000.0: 150.0}
    assert await after(3600.0) == {10_000.0: 3750.0, 13_750.0: 0.0}
    await costs.close()


async def test_a_clock_that_is_set_back_loses_no_period(store: Store) -> None:
    times = Clock(10_000.0)
    costs = CostFeature(CollectorRegistry(), store.database, now=times)
    for change_s in (10.0, -5_000.0, 10.0):
        times.now += change_s
        costs.device_time.close()
        await costs.tick()
    with store.database.read() as connection:
        assert len(stored_periods(connection, 10)) == 3


async def test_a_lost_database_is_retried_without_blocking_requests(tmp_path: Path, store: Store) -> None:
    class Gone:
        asked = 0

        def write(self) -> None:
            self.asked += 1
            raise StoreUnavailable("gone")

    path, gone = tmp_path / "prices.yaml", Gone()
    path.write_text(BOOK)
    costs = CostFeature(Metrics().registry, cast(Any, gone), prices=PriceFile(path))
    await costs.tick()
    await costs.tick()
    assert gone.asked == 2
    assert costs.price is not None
