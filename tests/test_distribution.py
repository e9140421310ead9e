"""The sdist and the wheel: what they hold, and that the wheel serves where nothing of this repository is."""

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import httpx2
import pytest
from build import ProjectBuilder
from pyproject_hooks import quiet_subprocess_runner

from tests.commands import free_port, serving
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
    with tarfile.open(sdist) as archive:
        if hasattr(tarfile, "data_filter"):  # the Python of Debian 12 has none
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(folder)
    [unpacked] = folder.iterdir()
    return Path(ProjectBuilder(unpacked, runner=quiet_subprocess_runner).build("wheel", folder))


def test_nothing_that_the_package_needs_is_a_link() -> None:
    assert [str(path) for path in SOURCE.rglob("*") if path.is_symlink()] == []


def test_the_wheel_holds_each_file_of_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name.removeprefix("prolepsis/") for name in archive.namelist() if name.startswith("prolepsis/")}
    written = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*") if path.is_file()}
    assert held == {name for name in written if "__pycache__" not in name}


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command in an environment that takes dependencies from this one, and the package from the wheel alone."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home)
    [packages] = home.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
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
