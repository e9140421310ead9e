"""The sdist and the wheel: what they hold, and that the wheel serves where nothing of this repository is."""

import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import httpx2
import pytest
from build import ProjectBuilder
from pyproject_hooks import quiet_subprocess_runner

from hatch_build import with_addresses
from tests.commands import free_port, serving
from tests.distributions import unpacked
from tests.paths import ROOT
from tests.training.targets import save_target

SOURCE = ROOT / "src" / "prolepsis"


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, as `python -m build` makes it, with the build backend of this environment."""
    return Path(ProjectBuilder(ROOT, runner=quiet_subprocess_runner).build("sdist", tmp_path_factory.mktemp("sdist")))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the unpacked sdist."""
    folder = tmp_path_factory.mktemp("wheel")
    return Path(ProjectBuilder(unpacked(sdist, folder), runner=quiet_subprocess_runner).build("wheel", folder))


def test_nothing_that_the_package_needs_is_a_link() -> None:
    assert [str(path) for path in SOURCE.rglob("*") if path.is_symlink()] == []


def test_the_wheel_holds_each_file_of_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name.removeprefix("prolepsis/") for name in archive.namelist() if name.startswith("prolepsis/")}
    written = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*") if path.is_file()}
    assert held == {name for name in written if "__pycache__" not in name}


def test_the_wheel_is_small(wheel: Path) -> None:
    """Heads are distributions of their own."""
    assert wheel.stat().st_size <= 2_500_000


def metadata(wheel: Path) -> tuple[Message, set[str]]:
    """Return the metadata of a wheel, and the names of its licence files."""
    with zipfile.ZipFile(wheel) as archive:
        [folder] = {name.partition("/")[0] for name in archive.namelist() if ".dist-info/" in name}
        home = f"{folder}/licenses/"
        licences = {name.removeprefix(home) for name in archive.namelist() if name.startswith(home)}
        return message_from_bytes(archive.read(f"{folder}/METADATA")), licences


def is_of_others(file: Path) -> bool:
    """Return whether a file may be other people's work: what is minified or packed was not written here."""
    try:
        file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return True
    return ".min." in file.name


def test_the_notice_names_each_file_of_others_with_its_licence(wheel: Path) -> None:
    notice, (about, licences) = (ROOT / "NOTICE").read_text(), metadata(wheel)
    files = {path for path in SOURCE.rglob("*") if path.is_file() and path.suffix != ".pyc" and is_of_others(path)}
    texts = set(SOURCE.rglob("*-LICENSE.txt"))
    named = {SOURCE.parent / name for name in re.findall(r"\bprolepsis/\S+", notice)}
    assert named == files | texts
    assert licences == {"LICENSE", "NOTICE", *(str(path.relative_to(ROOT)) for path in texts)}
    assert set(about.get_all("License-File", [])) == licences


def test_an_index_shows_the_readme_with_addresses_that_work_there(wheel: Path) -> None:
    about, _ = metadata(wheel)
    urls = dict(line.split(", ") for line in about.get_all("Project-URL", []))
    page, base = str(about.get_payload()), f"{urls['Source']}/blob/v{about['Version']}/"
    addresses = re.findall(r"\]\(([^)\s]+)\)", page)
    ours = [address.removeprefix(base).partition("#")[0] for address in addresses if address.startswith(base)]
    assert len(ours) > 20
    assert [path for path in ours if not (ROOT / path).exists()] == []
    assert [address for address in addresses if not address.startswith("https://")] == []
    assert (ROOT / urls["Changelog"].removeprefix(base)).is_file()
    assert (ROOT / urls["Documentation"].removeprefix(base)).is_file()


def test_pictures_of_the_readme_are_shown_as_files() -> None:
    assert with_addresses("![a](b.svg) [c](d.md#e) [f](#g)", "https://h/i", "v1") == (
        "![a](https://h/i/raw/v1/b.svg) [c](https://h/i/blob/v1/d.md#e) [f](#g)"
    )


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command in an environment with the package from the wheel alone, and dependencies from here.

    What is installed here for editing is found by a file that is read here only, so the kernels' folder is named.
    """
    home = tmp_path_factory.mktemp("environment")
    venv.create(home)
    [packages] = home.glob("lib/python*/site-packages")
    kernels = ROOT / "kernels" / "src"
    (packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n{kernels}\n")
    into = ["--python", str(home / "bin" / "python"), "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([sys.executable, "-m", "pip", *into, str(wheel)], check=True, capture_output=True)
    return home / "bin" / "prolepsis"


def test_the_wheel_serves_an_answer(installed: Path, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{(port := free_port())}"
    model = str(save_target(tmp_path / "tiny"))
    settings = ["--model", model, "--kv-memory", "64MiB", "--forward", "lean", "--strict", "off", "--store", "none"]
    command = [str(installed), "serve", "--port", str(port), *settings]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with serving(command, f"{url}/health/ready", tmp_path / "log", environment):
        body = {"model": Path(model).name, "prompt": "hello", "max_tokens": 4, "ignore_eos": True}
        reply = httpx2.post(f"{url}/v1/completions", json=body, timeout=60)
        pages = httpx2.get(f"{url}/console/runbooks", timeout=60)
    assert reply.json()["usage"]["completion_tokens"] == 4, reply.text
    assert pages.status_code == 200
    assert pages.text.count("<tr>") > 10
