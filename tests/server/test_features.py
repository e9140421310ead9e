"""What a new feature touches: a sample one is added to a copy of the package, and served."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from difflib import ndiff
from pathlib import Path

import pytest

from tests.paths import ROOT

PACKAGE = ROOT / "src" / "prolepsis"
FEATURE = {
    "__init__.py": '"""Long answers, counted."""\n',
    "model.py": """
from dataclasses import dataclass

@dataclass
class LongAnswers:
    num_long: int = 0

    def take(self, num_tokens: int) -> bool:
        is_long = num_tokens >= 2
        self.num_long += is_long
        return is_long
""",
    "feature.py": """
from dataclasses import dataclass

from prolepsis.core.ended import RequestEnded
from prolepsis.control.long_answers.model import LongAnswers
from prolepsis.core.telemetry.declare import counter
from prolepsis.control.web.context import Context
from prolepsis.control.web.feature import Feature
from prolepsis.control.web.routes import READERS, Routes

@dataclass(frozen=True)
class LongAnswersReply:
    num_long: int
    region: str
    is_kept: bool

class LongAnswersFeature(Feature):
    name = "long_answers"

    def __init__(self, context: Context) -> None:
        self._answers = LongAnswers()
        self._counted = counter(context.registry, "long_answers", "Answers of two tokens and more")
        routes = Routes()
        self.routes = routes.all

        @routes.get("/admin/long-answers", roles=READERS, summary="Long answers")
        async def shown() -> LongAnswersReply:
            return LongAnswersReply(self._answers.num_long, context.config.region, context.database.is_kept)

    def on_request_end(self, ended: RequestEnded) -> None:
        for prompt in ended.prompts:
            self._counted.inc(self._answers.take(prompt.stats.num_output_tokens))

feature = LongAnswersFeature
""",
}
SERVE = """
import asyncio, json
import httpx2
from prolepsis.core.config import ServerConfig
from prolepsis.core.telemetry.metrics import Metrics
from tests.server.application import build
from tests.server.fakes import ByteTokenizer, FakeEngine

async def main():
    app = build(ServerConfig(region="north"), FakeEngine(text="long"), ByteTokenizer(), Metrics())
    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://localhost")
    async with app.router.lifespan_context(app), http:
        (await http.post("/v1/completions", json={"model": "tiny", "prompt": "Hi"})).raise_for_status()
        reply = (await http.get("/admin/long-answers")).json()
        lines = (await http.get("/metrics")).text.splitlines()
        documented = "/admin/long-answers" in (await http.get("/openapi.json")).text
        metric = [line for line in lines if line.startswith("prolepsis_long_answers_total")]
    print(json.dumps([reply, metric, documented]))

asyncio.run(main())
"""


@pytest.fixture
def package(tmp_path: Path) -> Iterator[Path]:
    """Give a copy of the package."""
    copy = tmp_path / "prolepsis"
    shutil.copytree(PACKAGE, copy)  # with what is compiled
    yield copy
    shutil.rmtree(copy)


def test_a_feature_is_one_folder_and_one_entry_of_the_list(package: Path) -> None:
    (package / "control" / "long_answers").mkdir()
    for name, text in FEATURE.items():
        (package / "control" / "long_answers" / name).write_text(text)
    listed = package / "server" / "features.py"
    before = listed.read_text()
    imported, entry = "from prolepsis.control.long_answers import feature as long_answers", "    long_answers.feature,"
    after = before.replace("\n\nFEATURES", f"\n{imported}\n\nFEATURES", 1)
    listed.write_text(after.replace("    alerts.feature,\n", f"    alerts.feature,\n{entry}\n", 1))
    reply, metric, is_documented = served(package.parent)
    assert reply == {"num_long": 1, "region": "north", "is_kept": False}
    assert metric == ["prolepsis_long_answers_total 1.0"]
    assert is_documented
    assert changed(package) == {"control/long_answers", "server/features.py"}
    new = [line[2:] for line in ndiff(before.splitlines(), listed.read_text().splitlines()) if line[0] in "+-"]
    assert new == [imported, entry]


def served(source: Path) -> tuple[object, object, object]:
    """Return what a server of a copy of the package replies."""
    environment = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", SERVE]
    done = subprocess.run(
        command, cwd=source, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    reply, metric, is_documented = json.loads(done.stdout.splitlines()[-1])
    return reply, metric, is_documented


def changed(package: Path) -> set[str]:
    """Return the folders that are new in a copy, and the files that differ."""
    ours, theirs = _contents(PACKAGE), _contents(package)
    assert not ours.keys() - theirs.keys()
    new = {str(path.parent) if path not in ours else str(path) for path in theirs if ours.get(path) != theirs[path]}
    return new


def _contents(package: Path) -> dict[Path, bytes]:
    files = [file for file in package.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    return {file.relative_to(package): file.read_bytes() for file in files}
