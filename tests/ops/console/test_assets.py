"""Static files: vendored ones are those of their release, addresses change with their content."""

import json
from collections.abc import Callable
from hashlib import sha256
from importlib.resources import files

import httpx2

from prolepsis.ops.console.assets import Assets
from tests.ops.console.scene import Scene

FOLDER = files("prolepsis.ops.console") / "static"
OWN = {"console.css", "console.js", "playground.js", "mark.svg", "vendored.json"}


def test_vendored_files_are_those_that_were_recorded() -> None:
    vendored = json.loads((FOLDER / "vendored.json").read_text())
    recorded = {name: digest for one in vendored for name, digest in one["files"].items()}
    assert recorded.keys() | OWN == {file.name for file in FOLDER.iterdir()}
    assert {name: sha256((FOLDER / name).read_bytes()).hexdigest() for name in recorded} == recorded


def test_each_script_of_ours_is_short() -> None:
    scripts = [file for file in FOLDER.iterdir() if file.name in OWN and file.name.endswith(".js")]
    assert scripts
    assert all(len(file.read_text().splitlines()) <= 100 for file in scripts)


async def test_files_are_served_for_good_and_others_are_not_found(
    open_scene: Scene, browse: Callable[[Scene], httpx2.AsyncClient]
) -> None:
    http, assets = browse(open_scene), Assets()
    reply = await http.get(assets.url("console.js"))
    assert (reply.headers["content-type"], reply.content) == (
        "text/javascript; charset=utf-8",
        (FOLDER / "console.js").read_bytes(),
    )
    assert "immutable" in reply.headers["cache-control"]
    for name in ("vendored.json", "..%2Ffeature.py", "other.js"):
        assert (await http.get(f"/console/static/{name}")).status_code == 404
