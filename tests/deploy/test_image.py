"""The container, built from the wheels of this checkout and run: user 10001, a root that is read only, one answer."""

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from prolepsis.core.config import DEFAULT_MODEL
from prolepsis.core.files import cache_directory
from tests.commands import free_port, serving
from tests.deploy.written import DEPLOY, image_variables
from tests.paths import ROOT

MISSING = [name for name in ("buildah", "mmdebstrap", "runc") if shutil.which(name) is None]
MODEL = cache_directory() / "models" / DEFAULT_MODEL
TAG = "localhost/prolepsis-test"
USER = 10001
MOST_MB = 950
pytestmark = [
    pytest.mark.night,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts an image"),
    pytest.mark.timeout(1800),
]


@dataclass(frozen=True, slots=True)
class Container:
    """An image, mounted, with a folder on this machine for each of its volumes."""

    root: Path
    folder: Path

    def command(self, *arguments: str) -> Sequence[str]:
        """Return what runs the image's program by runc in this machine's network."""
        bundle = self.folder / uuid.uuid4().hex
        bundle.mkdir()
        subprocess.run(["runc", "spec", "--bundle", str(bundle)], check=True)
        config = json.loads((bundle / "config.json").read_text())
        config["root"] = {"path": str(self.root), "readonly": True}
        program = ["/opt/prolepsis/bin/prolepsis", *arguments]
        variables = [f"{name}={value}" for name, value in image_variables().items() if name != "PATH"]
        config["process"] |= {"terminal": False, "user": {"uid": USER, "gid": USER}, "cwd": "/", "args": program}
        config["process"] |= {"env": [*variables, "PATH=/opt/prolepsis/bin:/usr/bin:/bin"], "capabilities": {}}
        config["mounts"] += [
            {"destination": there, "source": str(here), "type": "bind", "options": ["bind", "rw"]}
            for there, here in self.volumes().items()
        ]
        config["mounts"].append({"destination": "/tmp", "source": "tmpfs", "type": "tmpfs"})
        config["linux"]["namespaces"] = [{"type": "mount"}, {"type": "pid"}]
        del config["hostname"]
        (bundle / "config.json").write_text(json.dumps(config))
        return ["runc", "run", "--bundle", str(bundle), bundle.name]

    def volumes(self) -> dict[str, Path]:
        names = {"state": "PROLEPSIS_DATA", "cache": "PROLEPSIS_CACHE"}
        return {image_variables()[variable]: self.folder / name for name, variable in names.items()}


def _buildah(*arguments: str) -> str:
    return subprocess.run(["buildah", *arguments], capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    """Build the image, yield its mounted file system, and delete both."""
    environment = {**os.environ, "BUILDAH_ISOLATION": "chroot", "BASE": "debian", "PYTHON": sys.executable}
    subprocess.run([str(DEPLOY / "container" / "build.sh"), TAG], env=environment, check=True, cwd=ROOT)
    container = _buildah("from", TAG)
    try:
        yield Path(_buildah("mount", container))
    finally:
        _buildah("rm", container)
        _buildah("rmi", TAG)


def test_it_is_small_and_has_no_compiler(root: Path) -> None:
    assert sum(path.lstat().st_size for path in root.rglob("*")) < MOST_MB * 10**6
    assert not {path.name for path in root.rglob("bin/*")} & {"cc", "c++", "g++", "gcc", "clang", "ld", "as", "pip"}


@pytest.mark.skipif(not MODEL.is_dir(), reason="the default model is not there: prolepsis models pull")
def test_it_answers_as_its_user_from_a_root_that_is_read_only(root: Path, tmp_path: Path) -> None:
    container = Container(root, tmp_path)
    shutil.copytree(MODEL, tmp_path / "cache" / "models" / DEFAULT_MODEL)
    (tmp_path / "state").mkdir()
    for folder in container.volumes().values():
        for path in (folder, *folder.rglob("*")):
            os.chown(path, USER, USER)
    created = subprocess.run(container.command("keys", "create"), capture_output=True, text=True, check=True)
    url = f"http://127.0.0.1:{(port := free_port())}"
    log = tmp_path / "log"
    with serving(container.command("serve", "--port", str(port)), f"{url}/health/ready", log, wait_s=600):
        asked = {"model": DEFAULT_MODEL, "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
        headers = {"authorization": f"Bearer {created.stdout.strip()}"}
        answer = httpx.post(f"{url}/v1/completions", json=asked, headers=headers, timeout=120)
    assert "Paris" in answer.json()["choices"][0]["text"], log.read_text()
    assert {path.stat().st_uid for path in tmp_path.glob("state/**/*")} == {USER}


def test_bytecode_fits_its_source(root: Path) -> None:
    """A start could not keep what it compiles again."""
    stale = []
    for compiled in root.glob("opt/prolepsis/lib/*/site-packages/**/*.pyc"):
        source = compiled.parents[1] / f"{compiled.name.partition('.')[0]}.py"
        if int.from_bytes(compiled.read_bytes()[8:12], "little") != int(source.stat().st_mtime):
            stale.append(source)
    assert stale == []
