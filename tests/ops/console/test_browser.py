"""The main ways through the console in a real Chromium, by mouse and by keyboard, and what it finds fault with."""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, get_args

import pytest

from prolepsis.ops.monitoring.files import RUNBOOK_URL, alert_groups, with_runbooks
from tests.engine.models.kernels import NEEDS_KERNELS
from tests.ops.console.incident import DAMAGED, GOOD, REASON, incident
from tests.ops.console.scene import POLICY, Scene, key_with
from tests.ops.console.served import served_scene, traffic
from tests.ops.monitoring.rules import all_rules

playwright = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs the package axe-playwright-python")
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright  # noqa: E402

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")
Scheme = Literal["light", "dark"]
MOST_BYTES = 220_000
"""Of a page with all that it loads."""
SITE_PAGES = (
    "",
    "/rollouts",
    "/rollouts/{rollout}",
    "/policy",
    "/policy/versions/1",
    "/policy/edit",
    "/policy/explain",
    "/proposers",
    "/quality",
    "/requests",
    "/requests/{request}",
    "/audit",
    "/audit/1",
    "/flags",
    "/kill",
    "/replicas",
    "/dashboards",
    "/runbooks/acceptance-cliff",
    "/playground",
    "/api",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as running:
        chromium = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Scene]]:
    with served_scene(tmp_path_factory.mktemp("site"), with_keys=True) as (url, scene):
        traffic(url, scene, 3)
        yield url, scene


@pytest.fixture
def page(browser: Browser, site: tuple[str, Scene]) -> Iterator[Page]:
    """A window that is signed in as an administrator; what its console complains about fails the test."""
    url, scene = site
    context = browser.new_context(base_url=url, viewport={"width": 1280, "height": 800})
    opened = context.new_page()
    complaints: list[str] = []
    opened.on("console", lambda message: complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.goto("/console/requests?order=slowest")
    opened.get_by_label("API key").fill(key_with(scene, "admin"))
    opened.get_by_label("API key").press("Enter")
    expect(opened.get_by_role("heading", level=1)).to_have_text("Requests")
    yield opened
    context.close()
    assert complaints == []


def paths(page: Page, scene: Scene) -> list[str]:
    """Return the addresses of all pages, with a rollout and a request that are there."""
    page.goto("/console/rollouts")
    rollout = page.locator("tbody th a").first.get_attribute("href")
    page.goto("/console/requests")
    request = page.locator("tbody th a").last.get_attribute("href")
    assert rollout is not None
    assert request is not None
    names = {"rollout": rollout.rpartition("/")[2], "request": request.rpartition("/")[2]}
    return [f"/console{path.format_map(names)}" for path in SITE_PAGES]


def test_speculation_is_stopped_and_released_from_any_page_by_keyboard_alone(page: Page) -> None:
    page.goto("/console/dashboards")
    page.locator("details.kill summary").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.type("drill")
    page.keyboard.press("Enter")
    expect(page.locator(".notice")).to_contain_text("Kill switch for everything: speculation is stopped.")
    expect(page.locator("details.kill summary")).to_contain_text("Speculation stopped")
    page.goto("/console")
    expect(page.locator("main")).to_contain_text("Speculation is stopped since")
    assert faults_of(page) == []
    page.goto("/console/kill")
    page.get_by_label("Reason to release everything").fill("drill is over")
    page.get_by_role("button", name="Release").press("Enter")
    expect(page.get_by_text("Nothing is stopped.")).to_be_visible()
    expect(page.locator("details.kill summary")).to_contain_text("Speculation on")


def test_a_flag_is_set_and_cleared_with_a_reason(page: Page) -> None:
    page.goto("/console/flags")
    page.get_by_label("Flag", exact=True).fill("new-drafts")
    page.get_by_label("Value for every request").select_option("off")
    page.locator("main #reason").fill("try without")
    page.get_by_role("button", name="Set the flag").click()
    expect(page.locator(".notice")).to_contain_text("Flag new-drafts is set.")
    expect(page.get_by_role("region", name="Table of flags").locator("tbody")).to_contain_text("try without")
    page.get_by_label("Reason to clear new-drafts").fill("tried")
    page.get_by_role("button", name="Clear new-drafts").click()
    expect(page.get_by_text("No flag is set here.")).to_be_visible()


def test_a_rollout_is_started_promoted_and_rolled_back(page: Page) -> None:
    page.goto("/console/rollouts")
    page.get_by_role("link", name="completions").click()
    page.get_by_label("Reason").last.fill("try it")
    page.get_by_role("button", name="Start").click()
    expect(page.locator(".steps [aria-current=step]")).to_have_text("shadow")
    page.locator("#reason-promote").fill("no evidence needed")
    page.get_by_label("although the stage has not passed").check()
    page.get_by_role("button", name="Promote").click()
    expect(page.locator(".steps [aria-current=step]")).to_have_text("canary 5%")
    page.locator("#reason-rollback").fill("that was a test")
    page.get_by_role("button", name="Roll back").click()
    expect(page.locator("main .status").first).to_contain_text("rolled back")
    expect(page.get_by_text("that was a test")).to_be_visible()


def test_an_edit_of_the_policy_is_checked_applied_and_explained(page: Page) -> None:
    page.goto("/console/policy")
    page.get_by_role("link", name="Edit and check").click()
    text = page.get_by_label("Text (YAML)")
    text.fill(POLICY.replace("tenant: [bank]", "tenant: [bank, insurer]"))
    page.get_by_role("button", name="Check").click()
    expect(page.get_by_role("table")).to_contain_text("insurer")
    page.locator("main #reason").fill("insurers too")
    page.get_by_role("button", name="Apply").click()
    expect(page.locator(".notice")).to_contain_text("of the policy is in use.")
    page.get_by_role("link", name="Explain a request").click()
    page.get_by_label("Tenant").fill("insurer")
    page.get_by_role("button", name="Explain").click()
    expect(page.get_by_role("heading", name="by rule regulated")).to_be_visible()


def test_a_slow_request_leads_to_its_rounds_its_rule_and_its_audit_entry(page: Page) -> None:
    page.goto("/console")
    page.get_by_role("link", name="Requests").click()
    page.get_by_role("link", name="Slowest").click()
    page.locator("tbody tr", has_text="speculating").first.get_by_role("link").click()
    expect(page.locator(".rounds li")).to_have_count(6)
    page.get_by_role("link", name=re.compile("Entry")).click()
    page.get_by_role("button", name="Replay").click()
    expect(page.locator(".notice")).to_contain_text("was decoded again: match.")


def test_a_head_is_swapped_in(page: Page) -> None:
    page.goto("/console/proposers")
    page.get_by_label("Reason to swap in mine@1").fill("compare")
    page.locator("tr", has_text="mine@1").get_by_role("button", name="Swap in").click()
    expect(page.locator(".notice")).to_contain_text("draft_head drafts with mine@1 now.")


def test_updates_leave_what_a_person_types_and_opened(page: Page) -> None:
    page.clock.install()
    page.goto("/console/kill")
    before = page.locator("#page").evaluate_handle("node => node")
    page.locator("details.kill summary").click()
    page.locator("#quick-reason").fill("half a sen")
    page.locator("h1").click()
    with page.expect_response(re.compile("/console/kill$")) as update:
        page.clock.fast_forward(5100)
    assert update.value.request.headers["hx-request"] == "true"
    page.wait_for_load_state("networkidle")
    expect(page.locator("#quick-reason")).to_have_value("half a sen")
    expect(page.locator("details.kill .panel")).to_be_visible()
    assert page.locator("#page").evaluate("(node, before) => node === before", before)


def test_one_prompt_is_asked_with_drafts_and_without(page: Page, site: tuple[str, Scene]) -> None:
    page.goto("/")
    expect(page.get_by_role("heading", level=1)).to_have_text("Playground")
    page.get_by_label("Key of role client").fill(key_with(site[1], "client"))
    page.get_by_text("System prompt and tools").click()
    page.get_by_label("System prompt", exact=True).fill("Be short.")
    page.get_by_role("button", name="Ask").click()
    expect(page.get_by_role("status").last).to_contain_text("as fast; the answers are the same.")
    expect(page.locator("#play-off-figures")).to_contain_text(re.compile(r"22 tokens in .* tokens/s$"))
    expect(page.locator("#play-auto-figures")).to_contain_text(re.compile(r"\d+ of 22 drafted tokens accepted$"))
    expect(page.locator("#play-off-text span[class]")).to_have_count(0)
    expect(page.locator("#play-auto-text")).to_have_text("abcdefghijklmnopqrstuv")
    expect(page.locator("#play-key-of-colours span")).to_have_text(["suffix", "draft head"])
    for scheme in get_args(Scheme):
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        assert faults_of(page) == []
    assert sorted(one.speculation.enabled for one in site[1].engine.requests[-2:]) == [False, True]


def test_stop_aborts_both_requests(page: Page, site: tuple[str, Scene]) -> None:
    engine = site[1].engine
    page.goto("/")
    page.get_by_label("Key of role client").fill(key_with(site[1], "client"))
    num_requests, num_aborted, engine.step_s = len(engine.requests), len(engine.aborted), 60.0
    page.get_by_role("button", name="Ask").click()
    expect(page.get_by_role("button", name="Stop")).to_be_focused()
    expect(page.locator("#play-off-figures")).to_contain_text("waiting")
    until(page, lambda: len(engine.requests) == num_requests + 2)
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("status").last).to_have_text("Stopped.")
    expect(page.get_by_role("button", name="Ask")).to_be_visible()
    until(page, lambda: len(engine.aborted) == num_aborted + 2)
    engine.step_s = 0.0


def until(page: Page, holds: Callable[[], bool]) -> None:
    """Wait for what the server does, at most 10 s."""
    for _ in range(200):
        if holds():
            return
        page.wait_for_timeout(50)
    pytest.fail("it did not come to hold in 10 s")


def test_a_snippet_is_copied(page: Page, site: tuple[str, Scene]) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto("/")
    page.get_by_text("curl", exact=True).click()
    page.get_by_role("button", name="Copy: curl").click()
    expect(page.get_by_role("button", name="Copy: curl")).to_have_text("Copied")
    copied = page.evaluate("() => navigator.clipboard.readText()")
    assert copied.startswith(f"curl -N {site[0]}/v1/chat/completions ")


def test_signing_out_ends_the_session(page: Page) -> None:
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
    page.goto("/console/dashboards")
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")


LOOKS = ["color-contrast", "scrollable-region-focusable", "target-size"]
"""Rules of axe whose outcome depends on colours and sizes: the style sheet hides nothing in a narrow window."""
HIDDEN_COLUMNS = """() => [...document.querySelectorAll(".scroll")]
    .filter(table => table.scrollWidth > table.clientWidth).map(table => table.textContent.slice(0, 80))"""


def faults_of(page: Page, **options: object) -> list[tuple[str, str]]:
    """Return what axe finds wrong with the page that is open: the rule and the element."""
    found = axe.Axe().run(page, options={"resultTypes": ["violations"], **options}).response["violations"]
    return [(one["id"], one["nodes"][0]["html"]) for one in found]


def test_no_page_has_a_fault_of_accessibility_or_is_wider_than_its_window(page: Page, site: tuple[str, Scene]) -> None:
    """On a narrow screen tables scroll; on a wide one every column is seen at once."""
    faults: dict[str, list[tuple[str, str]]] = {}
    for path in paths(page, site[1]):
        page.set_viewport_size({"width": 1100, "height": 800})
        page.emulate_media(color_scheme="light", reduced_motion="reduce")
        page.goto(path)
        faults[path] = faults_of(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 1100, path
        assert page.evaluate(HIDDEN_COLUMNS) == [], path
        page.set_viewport_size({"width": 390, "height": 800})
        page.emulate_media(color_scheme="dark", reduced_motion="reduce")
        faults[path] += faults_of(page, runOnly=LOOKS)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
    assert not any(faults.values()), faults


def test_pages_are_light_and_load_nothing_from_elsewhere(page: Page, site: tuple[str, Scene]) -> None:
    sizes: dict[str, int] = {}
    foreign: list[str] = []

    def see(url: str, size: int) -> None:
        sizes[url] = size
        foreign.extend([] if url.startswith(site[0]) else [url])

    page.on("response", lambda response: see(response.url, len(response.body())))
    for path in ("/console", "/console/proposers", "/console/requests"):
        sizes.clear()
        page.goto(path, wait_until="networkidle")
        assert len(sizes) >= 5
        assert sum(sizes.values()) < MOST_BYTES, sizes
    assert foreign == []


def test_everything_can_be_read_and_done_without_scripts(browser: Browser, tmp_path: Path) -> None:
    with served_scene(tmp_path, with_keys=False) as (url, scene):
        traffic(url, scene, 1)
        context = browser.new_context(base_url=url, java_script_enabled=False)
        page = context.new_page()
        for path in paths(page, scene):
            page.goto(path)
            expect(page.get_by_role("heading", level=1)).to_be_visible()
        page.goto("/")
        page.get_by_role("button", name="Ask").click()
        expect(page.get_by_role("status")).to_contain_text("the answers are the same.")
        expect(page.locator("#play-auto-text .by0").first).to_have_attribute("title", "drafted by suffix")
        page.goto("/console/kill")
        page.locator("main #reason").fill("no scripts")
        page.locator("main").get_by_role("button", name="Stop speculation").click()
        expect(page.locator(".notice")).to_contain_text("speculation is stopped.")
        context.close()


def test_no_value_of_a_tile_breaks_into_two_lines(page: Page, site: tuple[str, Scene]) -> None:
    request = next(path for path in paths(page, site[1]) if path.startswith("/console/requests/"))
    lines = """() => [...document.querySelectorAll(".tile dd")].map(value => {
        const shown = document.createRange();
        shown.selectNodeContents(value.firstChild);
        return [value.firstChild.textContent, shown.getClientRects().length];
    })"""
    for width in (1280, 1100, 390):
        page.set_viewport_size({"width": width, "height": 800})
        page.goto(request)
        values = page.evaluate(lines)
        assert any(text.endswith("EUR") for text, _ in values)
        assert [text for text, count in values if count != 1] == []


class Walk:
    """Counts the clicks of a person."""

    def __init__(self) -> None:
        self.num_clicks = 0

    def click(self, what: Locator) -> None:
        self.num_clicks += 1
        what.click()


def link_of(alert: str, url: str) -> str:
    [rule] = [
        rule
        for rule in all_rules(with_runbooks(alert_groups(), RUNBOOK_URL.replace("http://127.0.0.1:8000", url)))
        if rule.get("alert") == alert
    ]
    annotations = rule["annotations"]
    assert isinstance(annotations, dict)
    return str(annotations["runbook_url"])


@NEEDS_KERNELS
def test_from_an_alert_to_the_guilty_change_and_back_are_five_clicks(browser: Browser, tmp_path: Path) -> None:
    with incident(tmp_path) as site:
        site.requests(52)
        site.swap(DAMAGED)
        site.requests(52)
        context, walk = browser.new_context(base_url=site.url, viewport={"width": 1280, "height": 800}), Walk()
        page = context.new_page()
        streams = page.get_by_role("region", name="Streams").locator("tbody")

        walk.num_clicks += 1  # in the message of the alert
        page.goto(link_of("AcceptanceCliff", site.url))
        page.get_by_label("API key").fill(site.key("operator", "auditor"))
        page.get_by_label("API key").press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text("A proposer is hardly ever right")
        walk.click(page.get_by_role("link", name="Drift and recent changes"))
        expect(streams).to_contain_text(DAMAGED)
        expect(streams).to_contain_text("cliff")
        walk.click(page.get_by_role("link", name="head.swapped").first)
        facts = page.locator("dl.facts").first
        for told in (f"head {GOOD} → {DAMAGED}", REASON, "in effect", "draft_head", " UTC"):
            expect(facts).to_contain_text(told)
        assert walk.num_clicks == 3

        page.get_by_label("Reason").last.fill("acceptance fell to nothing")
        walk.click(page.get_by_role("button", name=f"Put {GOOD} back"))
        expect(page.locator(".notice")).to_contain_text(f"draft_head drafts with {GOOD} now.")
        expect(facts).to_contain_text("no longer in effect")
        site.requests(4)
        walk.click(page.get_by_role("link", name="Is acceptance back?"))
        expect(streams).to_contain_text(GOOD)
        expect(streams).to_contain_text("100%")
        expect(streams).not_to_contain_text("cliff")
        assert walk.num_clicks == 5
        context.close()
