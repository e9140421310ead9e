"""The page on adoption: its commands run in the order in which they stand, on a server with a small random model."""

import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
from typer.testing import CliRunner, Result

from prolepsis.core.config import EngineConfig, ServerConfig
from prolepsis.core.terminal.output import BAD_INPUT, FAILED, OK, UNPROVEN
from prolepsis.server.cli.main import app
from tests.control.store.databases import migrated_setting
from tests.paths import ROOT
from tests.server_process import serve_model, started
from tests.waiting import wait_for

PAGE = ROOT / "docs" / "how-to" / "adopt.md"
KINDS = ("code", "chat")


@pytest.fixture
def url(tiny_family: Callable[[str, str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.chdir(tmp_path)
    for name, value in {"PROLEPSIS_DATA": str(tmp_path), "COLUMNS": "300"}.items():
        monkeypatch.setenv(name, value)
    model = tiny_family("sentencepiece", "hermes")
    config = ServerConfig(store=migrated_setting(tmp_path), controls_file=tmp_path / "controls.json")
    with started(serve_model, config, EngineConfig(model=str(model))) as (_, address):
        monkeypatch.setenv("PROLEPSIS_URL", address)
        wait_for(lambda: httpx2.get(f"{address}/health/ready").status_code == 200)
        yield address


def commands() -> Iterator[list[str]]:
    for block in re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL):
        yield from (shlex.split(line, comments=True) for line in block.splitlines())


def ask(url: str) -> None:
    """Send requests of users, who declare what they are about."""
    model = httpx2.get(f"{url}/v1/models").json()["data"][0]["id"]
    for number in range(12):
        said = [{"role": "user", "content": "abc" * (1 + number % 3)}]
        about = {"metadata": {"domain": KINDS[number % 2]}, "max_tokens": 8}
        httpx2.post(f"{url}/v1/chat/completions", json={"model": model, "messages": said, **about}).raise_for_status()


def expected(words: list[str]) -> set[int]:
    """Return the exit statuses that the page allows: a check may end in any verdict, and a pilot needs one."""
    match words[1:]:
        case ["check", *_]:
            return {OK, FAILED, UNPROVEN}
        case ["pilot", "start", "--measured"]:
            return {BAD_INPUT}  # the policy lists no domain yet
        case ["pilot", "start"]:
            return {OK if json.loads(Path("check.json").read_text())["pilot"] else BAD_INPUT}
    return {OK}


def test_every_command_of_the_page_runs_in_its_order(url: str, tmp_path: Path) -> None:
    prompts = ({"id": f"p{i}", "category": KINDS[i % 2], "prompt": "abc" * (i + 1)} for i in range(4))
    (tmp_path / "prompts.jsonl").write_text("".join(f"{json.dumps(prompt)}\n" for prompt in prompts))
    ask(url)
    done = dict[str, Result]()
    for words in commands():
        assert words[0] == "prolepsis"
        line = " ".join(words[1:])
        done[line] = result = CliRunner().invoke(app, words[1:])
        assert result.exit_code in expected(words), f"{line}: {result.output} {result.exception!r}"
        if "pilot start --route" in line:
            ask(url)
        if line == "stop --show":
            assert httpx2.get(f"{url}/admin/kill").json()["on"]
    [start] = [result for line, result in done.items() if "pilot start --route" in line]
    for said in ("pilot-chat", "started: pilot-chat"):
        assert said in start.output
    status = done["pilot status"].stdout
    assert re.search(r"pilot-chat +running +(not known yet|off): .* 12 +20", status), status
    assert re.search(r"everything .* odd answers since 9:40", done["stop --show"].stdout)
    [report] = [result for line, result in done.items() if line.startswith("pilot report")]
    assert "Both arms share the engines" in report.stdout
    policy = httpx2.get(f"{url}/admin/policy").json()
    [rule] = [rule for rule in policy["content"]["rules"] if rule["name"] == "chat"]
    assert (rule["match"], rule["rollout"]["holdout"]) == ({"route": ["/v1/chat/completions"]}, 5.0)
    assert not any(name.startswith("pilot-") for name in policy["rules"])
    assert not httpx2.get(f"{url}/admin/kill").json()["on"]
