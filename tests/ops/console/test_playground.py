"""The page for newcomers without scripts, what it says of the server, and its snippets, which are run."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path

import httpx2
import pytest

from tests.ops.console.browser import press, sign_in, token_of
from tests.ops.console.scene import Scene, key_with
from tests.ops.console.served import served_scene

Browse = Callable[[Scene], httpx2.AsyncClient]
FORM = {"prompt": "Hi", "model": "tiny", "max_tokens": "64", "temperature": "0", "system": "", "tools": ""}
ANSWER = "abcdefghijklmnopqrstuv"
"""What the scene's engine says to all."""


async def ask(http: httpx2.AsyncClient, **fields: str) -> tuple[str, str]:
    """Send the form; return what its status says, and the page."""
    token = token_of(await http.get("/console/playground"))
    page = await http.post("/console/playground", data={"csrf": token, **FORM, **fields})
    assert page.status_code == 200
    [state] = re.findall(r'id="play-state" role="status">([^<]*)<', page.text)
    return unescape(state), page.text


def snippets(page: str) -> dict[str, str]:
    """Return the snippets by their titles."""
    found = re.findall(r"<summary>([^<]+)</summary>\s*<p.*?</p>\s*<pre[^>]*>([^<]+)</pre>", page)
    return {unescape(title): unescape(text) for title, text in found}


async def test_both_answers_are_shown_with_what_was_drafted(open_scene: Scene, browse: Browse) -> None:
    state, page = await ask(browse(open_scene), system="Be short.")
    assert re.fullmatch(r"With speculation [\d.]+x as fast; the answers are the same\.", state)
    plain, drafted = page.split('id="play-auto-text"')
    assert f"<span>{ANSWER}</span>" in plain
    assert '<span class="by0" title="drafted by suffix">abcd</span>' in drafted
    assert '<span class="by1">draft head</span>' in drafted
    assert len(re.findall(r"22 tokens in [\d.]+ s: [\d.]+ tokens/s", page)) == 2
    assert "Be short.</textarea>" in page
    asked = open_scene.engine.requests[-2:]
    assert sorted(one.speculation.enabled for one in asked) == [False, True]
    assert len({one.params.seed for one in asked}) == 1


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"tools": "[{"}, "tools is not JSON"),
        ({"tools": "[7]"}, "tools"),
        ({"max_tokens": "0"}, "max_tokens"),
        ({"temperature": "warm"}, "temperature is not JSON"),
        ({"model": "other"}, "other"),
        ({"prompt": " "}, "messages"),
    ],
)
async def test_what_cannot_be_asked_is_said_on_the_form(
    open_scene: Scene, browse: Browse, fields: dict[str, str], says: str
) -> None:
    state, page = await ask(browse(open_scene), **fields)
    assert state.startswith("Not possible: ")
    assert says in state
    assert "Hi</textarea>" in page or "prompt" in fields
    assert open_scene.engine.requests == []


async def test_asking_takes_a_key_of_a_client(keyed_scene: Scene, browse: Browse) -> None:
    http = browse(keyed_scene)
    shown = await http.get("/console/playground")
    assert shown.headers["location"] == "/console/sign-in?next=/console/playground"
    assert "This server asks for a key." in (await http.get(shown.headers["location"])).text
    viewer = key_with(keyed_scene, "viewer")
    await sign_in(http, viewer)
    for key in ("", "made up", viewer):
        state, _ = await ask(http, key=key)
        assert state.startswith("Not possible: "), key
    assert keyed_scene.engine.requests == []
    client = key_with(keyed_scene, "client")
    state, page = await ask(http, key=client)
    assert "the answers are the same" in state
    assert client not in page


async def test_the_first_line_says_what_answers(open_scene: Scene, browse: Browse) -> None:
    http = browse(open_scene)
    page = (await http.get("/console/playground")).text
    assert "<strong>tiny</strong> answers the same text with and without speculation (exactness strict)." in page
    assert "Speculation is on" in page
    await press(http, "kill", on="true", scope="everything", reason="test")
    assert "Speculation is stopped" in (await http.get("/console/playground")).text.split("<form id")[0]


async def test_where_keys_are_asked_for_the_snippets_have_a_place_for_one(keyed_scene: Scene, browse: Browse) -> None:
    http = browse(keyed_scene)
    await sign_in(http, key_with(keyed_scene, "viewer"))
    open_page = (await http.get("/console/playground")).text
    texts = snippets(open_page)
    assert len(texts) == 6
    assert [title for title, text in texts.items() if "YOUR_KEY" not in text] == ["Codex"]
    assert "export PROLEPSIS_KEY=YOUR_KEY" in open_page


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The snippets of a server that runs without keys."""
    folder: Path = tmp_path_factory.mktemp("site")
    with served_scene(folder, with_keys=False) as (url, _):
        found = snippets(httpx2.get(f"{url}/console/playground").text)
        assert all(url in text for text in found.values())
        yield found


@pytest.mark.parametrize("package", ["openai", "ollama"])
def test_a_snippet_in_python_runs(shown: dict[str, str], package: str) -> None:
    pytest.importorskip(package, reason=f"needs the package {package}")
    [text] = [text for text in shown.values() if text.startswith(f"from {package} ")]
    ended = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert ended.stdout == f"{ANSWER}\n"


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_snippet_of_curl_runs(shown: dict[str, str]) -> None:
    ended = subprocess.run(["sh", "-c", shown["curl"]], capture_output=True, text=True, check=True)
    chunks = [json.loads(line[6:]) for line in ended.stdout.splitlines() if line.startswith("data: {")]
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == ANSWER
