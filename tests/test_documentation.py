"""Commands of the README and of docs: all are understood, and those that can run here run as written."""

import json
import os
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pygments.lexers import get_all_lexers  # type: ignore[import-untyped]
from typer.core import TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command
from typer.testing import CliRunner

from docs.tables import MARKER, TABLES
from prolepsis.server.cli.main import app
from prolepsis.server.front.key_file import KeyFile, new_key
from tests.loopback import Reply, Request, serving
from tests.ops.console.scene import POLICY
from tests.ops.console.served import served_scene, traffic
from tests.paths import ROOT

HOW_TO = [ROOT / "README.md", *sorted((ROOT / "docs" / "how-to").glob("*.md"))]
PAGES = [*HOW_TO, *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page not in HOW_TO)]
CANNOT_RUN = {
    "make": "installs, downloads and serves",
    "curl": "needs the server that `make serve` starts",
    ".": "the environment of `make serve`",
    "pip": "installs",
    "pipx": "installs",
    "uv": "installs",
    "uvx": "installs",
    "python3": "installs",
    "python3.11": "installs",
    "podman": "needs a container engine",
    "docker": "needs a container engine",
    "cd": "the folder of the next lines, which need a container engine",
    "echo": "a setting of the next lines, which need a container engine",
    "kubectl": "needs a cluster",
    "ray": "makes a cluster of Ray; tests/adapters/ray",
    "export": "a setting of the next lines, which need a cluster of Ray",
    "serve": "needs a cluster of Ray; tests/adapters/ray",
    "helm": "needs a cluster",
    "env": "an edge in front of other servers; tests/deploy/test_haproxy.py",
    "cp": "changes the machine",
    "systemd-run": "changes the machine",
    "systemctl": "changes the machine",
    "/opt/prolepsis/venv/bin/pip": "installs",
    "prometheus": "serves until it is stopped; tests/ops/monitoring checks its files",
    "prometheus-alertmanager": "serves until it is stopped; tests/ops/monitoring checks its file",
    "llama-server": "another engine; tests/adapters/upstream runs it where it is installed",
    "vllm": "another engine; tests/adapters/vllm runs it where it is installed",
    "vllm-env/bin/pip": "installs",
    "vllm-env/bin/prolepsis": "needs an environment with vLLM; tests/adapters/vllm",
    "prolepsis serve": "serves until it is stopped; tests/server/cli/test_serve.py",
    "prolepsis propose-server": "serves until it is stopped; tests/server/cli/test_propose_server.py",
    "prolepsis doctor": "ends with the status of what it finds; tests/lab/doctor/test_command.py",
    "prolepsis check": "takes minutes with the default model; tests/lab/check",
    "prolepsis pilot": "needs recorded requests; tests/e2e/test_adopt.py",
    "prolepsis exact": "takes minutes with the default model; tests/exact",
    "prolepsis profile": "measures for a minute; tests/lab/test_profile.py",
    "prolepsis drill": "needs a server that allows drills; tests/lab/drills/test_command.py",
    "prolepsis bench": "takes minutes; tests/lab/measure/test_measure.py",
    "prolepsis rehearse": "loads a model, or needs what was measured; tests/lab/test_rehearse.py",
    "prolepsis tune": "needs what was measured; tests/lab/rehearsal/test_tune.py",
    "prolepsis batch": "loads a model; tests/server/cli/test_batch.py",
    "prolepsis models": "needs files of a head; tests/server/cli/test_models.py",
    "prolepsis learning run": "trains, or waits; tests/training/test_learning.py",
    "prolepsis heads swap": "needs the heads that it names; tests/control/drafts",
}
"""By the beginning of a command: why it is not run here."""


FOLDERS = ("src", "tests", "benchmarks", "docs", "deploy", "monitoring", "heads", "kernels")
NOT_OURS = {
    "utils/cpu_triton_utils.py",
    "vocab",
    "templates",
    "data",
    "head",
    "head/levels",
    "src/prolepsis/x/y.py",
    "tests/x/test_y.py",
    "engine/drafting/proposers/NAME.py",
}
"""Files that a page names and the repository lacks: of others, and of what a command writes."""


@dataclass(frozen=True)
class Line:
    page: Path
    words: tuple[str, ...]
    target: str
    """File that the output goes to; empty: none."""

    @property
    def beginning(self) -> str:
        """The longest beginning that `CANNOT_RUN` names; empty: the line can run."""
        joined = " ".join(self.words)
        found = [one for one in CANNOT_RUN if joined == one or joined.startswith(f"{one} ")]
        return max(found, key=len, default="")

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}: {' '.join(self.words)}"


def lines(pages: list[Path]) -> Iterator[Line]:
    """Yield the commands of shell blocks; a line that `&&` joins is several."""
    for page in pages:
        for text in _texts(page, "sh"):
            words, target = shlex.split(text, comments=True), ""
            if ">" in words:
                words, target = words[: words.index(">")], words[words.index(">") + 1]
            for command in " ".join(shlex.quote(word) for word in words).split(" '&&' "):
                if command:
                    yield Line(page, tuple(shlex.split(command)), target)


def _texts(page: Path, *kinds: str) -> Iterator[str]:
    """Yield the lines of a page's blocks of these kinds; one that goes on, also within quotes, is one."""
    for kind, block in re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        if kind in kinds:
            joined = block.replace("\\\n", " ")
            joined = re.sub(r"'\{\n[^']*'", lambda quoted: quoted[0].replace("\n", " "), joined)
            yield from joined.splitlines()


def commands() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the commands of ours on all pages, also in blocks that show what they print."""
    for page in PAGES:
        for text in _texts(page, "", "sh"):
            if text.startswith("prolepsis "):
                words = shlex.split(text, comments=True)
                ends = [i for i, word in enumerate(words) if word in (">", "|", "2>", "&&", "&")]
                yield f"{page.relative_to(ROOT)}: {text}", tuple(words[1 : min([*ends, len(words)])])


RUN = list(lines(HOW_TO))


def test_every_documented_command_is_understood() -> None:
    wrong = []
    for where, words in commands():
        try:
            understood(words)
        except TyperException as error:
            wrong.append(f"{where}: {error}")
    assert not wrong, "\n".join(wrong)


def test_blocks_name_languages_that_are_highlighted() -> None:
    """Sphinx warns of others only where it writes HTML."""
    kinds = {kind: page for page in PAGES for kind in re.findall(r"^ *```(\w+)$", page.read_text(), re.MULTILINE)}
    known = {alias for _, aliases, _, _ in get_all_lexers() for alias in aliases}
    assert not {kind: page for kind, page in kinds.items() if kind not in known}


def test_each_table_that_is_made_of_the_code_is_on_a_page() -> None:
    markers = [marker[1] for page in PAGES for marker in MARKER.finditer(page.read_text())]
    assert set(markers) == TABLES.keys()
    assert sum(page.read_text().count("<!-- table:") for page in PAGES) == len(markers), "a marker is a line of its own"


def test_a_decision_has_at_most_forty_lines() -> None:
    decisions = (ROOT / "docs" / "why" / "decisions").glob("0*.md")
    assert not [page.name for page in decisions if len(page.read_text().splitlines()) > 40]


def test_files_and_modules_that_a_page_names_are_there() -> None:
    paths = [f"/{path.relative_to(ROOT)}" for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    known = {*paths, *(path.removesuffix(".py") for path in paths)}
    missing = []
    for page in [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md"]:
        if page.name == "log.md" or page.parent.name == "log":
            continue
        text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        files = re.findall(r"`((?:[a-z_]+/)*[\w-]+\.(?:py|h)|(?:[a-z_]+/)+)`", text)
        modules = [
            name.replace(".", "/")
            for name in re.findall(r"python -m ((?:benchmarks|docs|tests)[\w.]+)", page.read_text())
        ]
        named = {*(name.rstrip("/") for name in files), *modules} - NOT_OURS
        missing += [f"{page.name}: {name}" for name in named if not any(path.endswith(f"/{name}") for path in known)]
    assert not missing


def test_the_page_on_installing_names_each_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    page = (ROOT / "docs" / "how-to" / "install.md").read_text().partition("| extra |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == extras.keys()


def test_a_command_with_a_wrong_option_is_not_understood() -> None:
    for words in (("serve", "--no-such"), ("stop", "up"), ("stop", "--scopes", "x")):
        with pytest.raises(TyperException):
            understood(words)


def understood(words: tuple[str, ...]) -> None:
    """Raise `TyperException` where a command does not take these words."""
    command: Any = get_command(app)
    context = command.make_context("prolepsis", list(words))
    while isinstance(command, TyperGroup) and (rest := [*context._protected_args, *context.args]):
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)


def test_what_cannot_run_is_in_the_documentation() -> None:
    assert {one.beginning for one in RUN} - {""} == CANNOT_RUN.keys()
    programs = {one.words[0] for one in RUN if not one.beginning}
    assert programs <= {"prolepsis", "openssl", "chmod"}, "a new program needs a reason, or a place in this test"


def without_results(_: Request) -> Reply:
    document = {"status": "success", "data": {"resultType": "matrix", "result": []}}
    return Reply(200, json.dumps(document).encode(), {"content-type": "application/json"})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Mapping[str, str], dict[str, str]]]:
    """Give a folder with the files that commands name, what stands for their addresses and names, and an environment.

    One server runs; its store has six versions of a policy, as the documentation's has.
    """
    folder = tmp_path_factory.mktemp("documented")
    data = folder / "data"
    data.mkdir()
    record, _ = new_key("acme", roles=("client",))
    KeyFile(data / "keys.json").add(record)
    with ExitStack() as stack:
        url, site = stack.enter_context(served_scene(tmp_path_factory.mktemp("scene"), with_keys=False))
        prometheus = stack.enter_context(serving(without_results))
        traffic(url, site, 2)
        rollout = _policies(url)
        _files(folder)
        stands_for = {
            "http://127.0.0.1:8000/console": "http://127.0.0.1:8000/console",
            "http://127.0.0.1:8000": url,
            "http://10.0.0.7:8000": url,
            "http://127.0.0.1:9090": prometheus,
            "code@3f9c0a1b": rollout,
            "3f9c0a1b2c4d": record.id,
        }
        environment = {
            "PROLEPSIS_DATA": str(data),
            "PROLEPSIS_STORE": site.store.database.url.render_as_string(hide_password=False),
            "PROLEPSIS_KEYS_FILE": str(data / "keys.json"),
        }
        yield folder, stands_for, environment


def _policies(url: str) -> str:
    """Put versions 2 to 6 in the store and start the rollout; return its id."""
    with httpx2.Client(base_url=url) as http:
        for number in range(1, 6):
            body = {"text": POLICY.replace("version: 7", f"version: v{number}"), "expect": number, "reason": "test"}
            http.put("/admin/policy", json=body).raise_for_status()
        [rollout] = http.get("/admin/rollouts").json()["rollouts"]
        http.post(f"/admin/rollouts/{rollout['id']}/start", json={"reason": "test"}).raise_for_status()
    return str(rollout["id"])


def _files(folder: Path) -> None:
    """Write the files that commands name: the policy of the README, and small others."""
    [policy] = re.findall(r"^```yaml\n# policy.yaml\n(.*?)^```", HOW_TO[0].read_text(), re.MULTILINE | re.DOTALL)
    for name in ("policy.yaml", "new.yaml", "tuned.yaml"):
        (folder / name).write_text(policy)
    (folder / "old.yaml").write_text(policy.replace("limit: 1.2", "limit: 1.3"))
    (folder / "request.json").write_text(json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}))
    (folder / "server.log").write_text("2026-11-26T18:00:00Z [info] ready\n")
    flag = {"state": "ENABLED", "variants": {"on": True, "off": False}, "defaultVariant": "on"}
    (folder / "flag.yaml").write_text(json.dumps(flag))


def test_commands_that_can_run_here_run_as_written(
    place: tuple[Path, Mapping[str, str], dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, stands_for, environment = place
    monkeypatch.chdir(folder)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    failed = []
    for line in RUN:
        if not line.beginning:
            words = [_filled(word, stands_for) for word in line.words]
            if found := _problem(words, line, stands_for):
                failed.append(f"{line}: {found}")
    assert not failed, "\n".join(failed)


def _filled(word: str, stands_for: Mapping[str, str]) -> str:
    for documented, real in stands_for.items():
        if documented in word:
            return word.replace(documented, real)
    return word


def _problem(words: list[str], line: Line, stands_for: Mapping[str, str]) -> str:
    """Run a command; return what went wrong."""
    if words[0] != "prolepsis":
        if shutil.which(words[0]) is None:
            return ""
        done = subprocess.run(words, check=False, capture_output=True, text=True, env=os.environ)
        output, status, shown = done.stdout, done.returncode, done.stderr
    else:
        words = words[1:]
        if "--url" not in words and _asks_a_server(words):
            words += ["--url", stands_for["http://127.0.0.1:8000"]]
        result = CliRunner().invoke(app, words)
        output, status, shown = result.stdout, result.exit_code, f"{result.stderr} {result.exception!r}"
    if line.target:
        Path(line.target).write_text(output)
    return f"status {status}: {shown[-400:]}" if status else ""


def _asks_a_server(words: list[str]) -> bool:
    """Return whether a command asks the server at 127.0.0.1:8000 unless it is told another."""
    asking = {
        "show": {"breakers", "cost", "correctness", "delivery", "drift", "replicas", "shadow"},
        "rollout": {"show", "hold"},
        "policy": {"apply", "show", "rollback"},
        "heads": {"list"},
        "flags": {"set", "remove", "list"},
        "breaker": {"set"},
    }
    return words[0] in ("incident", "status") or not asking.get(words[0], set()).isdisjoint(words[1:2])
