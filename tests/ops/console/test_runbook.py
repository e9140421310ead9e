"""The runbooks that the package carries, as the console shows them."""

import re

import pytest

from prolepsis.ops.console.runbook import by_alert, rendered, runbooks
from tests.ops.console.scene import Scene
from tests.ops.console.test_pages import Browse
from tests.paths import ROOT

SOURCES = ROOT / "src" / "prolepsis" / "ops" / "console" / "runbooks"


def test_every_runbook_is_read_with_its_alerts() -> None:
    pages = runbooks()
    assert set(pages) == {file.stem for file in SOURCES.glob("*.md")}
    assert pages["acceptance-cliff"].title == "A proposer is hardly ever right"
    assert by_alert(pages)["CostBudgetBurns"].path == "/console/runbooks/cost"


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("[a](http://127.0.0.1:8000/console/quality#drift)", '<a href="/console/quality#drift">a</a>'),
        ("[a](latency.md)", '<a href="/console/runbooks/latency">a</a>'),
        ("[a](latency.md#close)", '<a href="/console/runbooks/latency#close">a</a>'),
        ("[a](https://example.org/x)", '<a href="https://example.org/x">a</a>'),
        ("[a](../../../../docs/how-to/training.md) b", "a (docs/how-to/training.md) b"),
        ("[a](javascript:alert(1))", "[a](javascript:alert(1))"),
        ("<script>a</script>", "&lt;script&gt;a&lt;/script&gt;"),
    ],
)
def test_links_lead_to_this_server_and_markup_is_shown_as_text(text: str, html: str) -> None:
    assert str(rendered(text)).strip().removeprefix("<p>").removesuffix("</p>") == html


async def test_each_link_of_a_runbook_leads_to_a_page(open_scene: Scene, browse: Browse) -> None:
    http = browse(open_scene)
    links = {link for page in runbooks().values() for link in re.findall(r'href="([^"]+)"', page.content)}
    assert "/console/quality#drift" in links
    for link in sorted(links):
        path, _, part = link.partition("#")
        page = await http.get(path)
        assert page.status_code == 200, link
        assert not part or f'id="{part}"' in page.text, link


async def test_the_page_of_an_alert_is_shown_and_others_are_named(open_scene: Scene, browse: Browse) -> None:
    http = browse(open_scene)
    listed = (await http.get("/console/runbooks")).text
    assert '<a href="/console/runbooks/acceptance-cliff">A proposer is hardly ever right</a>' in listed
    page = (await http.get("/console/runbooks/acceptance-cliff")).text
    assert "<h2>Stop the harm</h2>" in page
    missing = await http.get("/console/runbooks/none")
    assert missing.status_code == 404
    assert "allowed: acceptance, " in missing.text
