"""Draws the pictures of docs/how-to: `python -m tests.ops.console.screenshots`, after a change of the pages."""

import math
import shutil
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx2
from playwright.sync_api import Browser, Page, sync_playwright

from prolepsis.control.cost.prices import PriceFile
from prolepsis.control.replicas.registry import ReplicaRegistry
from prolepsis.control.store import records
from prolepsis.control.store.store import open_store
from prolepsis.control.traffic.feature import TrafficFeature
from prolepsis.control.traffic.timeline import Timeline
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.ops.incident.commands.pilot import report
from tests.control.cost.test_pilot import changed
from tests.control.cost.test_pilot import traffic as pilot_traffic
from tests.control.store.databases import migrated_setting
from tests.ops.console.incident import DAMAGED, Incident, incident
from tests.ops.console.scene import PRICES, Scene, add_replica, scene
from tests.ops.console.served import ASKED, served, served_scene, traffic
from tests.paths import ROOT
from tests.server.conftest import served as served_app
from tests.server.fakes import FakeEngine

IMAGES = ROOT / "docs" / "images" / "console"
STEP_S = 0.0148
"""Eight of them are as long as an answer takes by its figures."""


def an_hour(url: str, site: Scene) -> None:
    """Serve requests whose rate rises and falls, as if in an hour: what its lines show."""
    [feature] = [one for one in site.app.state.features if isinstance(one, TrafficFeature)]
    feature.all = Timeline(15.0, 240, lambda: feature.now())  # noqa: PLW0108  # it changes
    start = time.time() - 3600.0
    with httpx2.Client(base_url=url) as http:
        for number in range(241):
            feature.now = partial(float, start + 15.0 * number)
            rate = 2 + round(math.sin(number / 40) + math.sin(number / 9))
            span = feature.all.current()
            span.num_running, span.num_waiting = 1 + rate, max(0, rate - 3)
            for _ in range(rate):
                path, asked = ASKED[0]
                http.post(path, json={"model": "tiny", "max_tokens": 64, **asked}).raise_for_status()
    feature.now = time.time


def a_rollout(url: str, site: Scene) -> str:
    """Start the rollout and serve as much as its evidence needs; return its page."""
    with httpx2.Client(base_url=url) as http:
        [rollout] = http.get("/admin/rollouts").json()["rollouts"]
        for command, force in (("start", False), ("promote", True), ("promote", True)):
            body = {"reason": "evidence of the last quarter", "force": force}
            http.post(f"/admin/rollouts/{rollout['id']}/{command}", json=body).raise_for_status()
    traffic(url, site, 200)
    return f"/console/rollouts/{rollout['id']}"


def a_request(url: str, site: Scene) -> str:
    """Serve a request that speculates and takes the time that the engine's figures say; return its page."""
    path, asked = ASKED[0]
    with httpx2.Client(base_url=url) as http:
        site.engine.step_s = STEP_S
        http.post(path, json={"model": "tiny", "max_tokens": 64, **asked}).raise_for_status()
        site.engine.step_s = 0.0
        requests = http.get("/admin/requests?last=20").json()["requests"]
    name = next(one["record"]["request_id"] for one in requests if one["record"]["policy_rule"] == "chat")
    return f"/console/requests/{name}"


def a_cliff(site: Incident) -> None:
    """Serve for a quarter of an hour, put the damaged head in, and serve for ten minutes more, as if."""
    [feature] = [one for one in site.app.state.features if isinstance(one, TrafficFeature)]
    feature.all = Timeline(15.0, 240, lambda: feature.now())  # noqa: PLW0108  # it changes
    now = time.time()
    for span in range(-60, 0):
        site.set_clock(partial(float, now + 15.0 * span))
        site.requests(1, max_tokens=5 + span % 4)
    site.swap(DAMAGED)
    for span in range(1, 41):
        site.set_clock(partial(float, time.time() + 15.0 * span))
        site.requests(2)


def keep(page: Page, name: str, url: str) -> None:
    page.goto(url, wait_until="networkidle")
    page.screenshot(path=IMAGES / f"{name}.png")


def pictures_of_the_pages(browser: Browser) -> None:
    """Draw those of docs/how-to/console.md."""
    with TemporaryDirectory() as folder, served_scene(Path(folder), with_keys=False) as (url, site):
        page = browser.new_page(viewport={"width": 1100, "height": 760})
        an_hour(url, site)
        keep(page, "request", url + a_request(url, site))
        keep(page, "rollout", url + a_rollout(url, site))
        page.set_viewport_size({"width": 1100, "height": 1000})
        keep(page, "overview", f"{url}/console")


def two_others(site: Scene) -> None:
    """Let the store know of a replica of the server's group, and of one of another group that was lost."""
    [registry] = [one for one in site.app.state.features if isinstance(one, ReplicaRegistry)]
    registry.replica = "serve-c-311-5e0b"
    group = site.engine.info.exact_group
    other = replace(group, forward="native avx2", machine="x86_64 with AVX2")
    add_replica(site, "serve-a-207-91fc", group, (540.0, 2.0))
    add_replica(site, "serve-b-264-a37d", other, (420.0, 40.0))


def three_flags(url: str) -> None:
    """Set two flags for every request, and one for those of one tenant."""
    one_tenant = {
        "state": "ENABLED",
        "variants": {"on": True, "off": False},
        "defaultVariant": "off",
        "targeting": {"if": [{"==": [{"var": "tenant"}, "bank"]}, "on", "off"]},
    }
    with httpx2.Client(base_url=url) as http:
        for flag, what, reason in (
            ("speculation.enabled", {"value": True}, "the night's test is over"),
            ("long-answers", {"value": False}, "slower since Monday, see the review"),
            ("new-drafts", {"definition": one_tenant}, "the bank tries them first"),
        ):
            http.put("/admin/flags", json={"flag": flag, "reason": reason, **what}).raise_for_status()


def pictures_of_a_fleet(browser: Browser) -> None:
    """Draw the pages of replicas and of flags, of docs/how-to/console.md."""
    with TemporaryDirectory() as folder, scene(Path(folder)) as site:
        two_others(site)
        with served(site.app) as url:
            three_flags(url)
            for name, height in (("replicas", 600), ("flags", 790)):
                page = browser.new_page(viewport={"width": 1100, "height": height})
                keep(page, name, f"{url}/console/{name}")


def pictures_of_an_incident(browser: Browser) -> None:
    """Draw those of docs/how-to/first-incident.md."""
    with TemporaryDirectory() as folder, incident(Path(folder)) as site:
        page = browser.new_page(viewport={"width": 1100, "height": 560})
        a_cliff(site)
        page.goto(f"{site.url}/console")
        page.get_by_label("API key").fill(site.key("operator", "auditor"))
        page.get_by_label("API key").press("Enter")
        page.wait_for_url("**/console")
        keep(page, "incident-runbook", f"{site.url}/console/runbooks/acceptance-cliff")
        keep(page, "incident-drift", f"{site.url}/console/quality")
        entry = page.get_by_role("link", name="head.swapped").first.get_attribute("href")
        page.goto(f"{site.url}/console", wait_until="networkidle")
        page.locator(".cards .card").nth(1).screenshot(path=IMAGES / "incident-curve.png")
        keep(page, "incident-entry", f"{site.url}{entry}")


def picture_of_a_pilot(browser: Browser) -> None:
    """Draw that of docs/how-to/savings.md, of requests that are made up: 2,000 in the last week."""
    with TemporaryDirectory() as folder:
        began, file = time.time() - 7 * 86400.0, Path(folder) / "pilot.html"
        (Path(folder) / "prices.yaml").write_text(PRICES)
        store = open_store(migrated_setting(Path(folder)), Metrics().registry)
        made = {"rollout_run": "chat@4f0c1d2a#1", "kept_form": True}
        rows = [changed(one, ended_at=began + 300.0 * i, **made) for i, one in enumerate(pilot_traffic(2000))]
        with store.database.write() as connection:
            records.add(connection, rows)
        with served_app(FakeEngine(), store=store, prices=PriceFile(Path(folder) / "prices.yaml")) as server:
            report(url=server.url, html=file)
        store.close()
        page = browser.new_page(viewport={"width": 1180, "height": 740})
        keep(page, "../pilot", file.as_uri())


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        pictures_of_the_pages(browser)
        pictures_of_a_fleet(browser)
        pictures_of_an_incident(browser)
        picture_of_a_pilot(browser)
        browser.close()


if __name__ == "__main__":
    main()
