"""The container: what it keeps, as whom it runs, and what a linter says."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from prolepsis.core.terminal.config import load_settings
from tests.deploy.written import CONTAINERFILE, DEPLOY, image_variables

TEXT = CONTAINERFILE.read_text()
BUILD = DEPLOY / "container" / "build.sh"


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
    assert f"prolepsis:x:{users[0]}:{users[0]}:" in TEXT


def test_nothing_is_compiled_or_downloaded_and_only_the_installed_tree_is_kept() -> None:
    build, image = re.split(r"^FROM \$\{BASE\}$", TEXT, maxsplit=1, flags=re.MULTILINE)
    assert re.findall(r"^COPY (.+)$", build, re.MULTILINE) == ["wheels /wheels"]
    assert re.findall(r"^COPY (.+)$", image, re.MULTILINE) == ["--from=build /opt/prolepsis /opt/prolepsis"]
    assert "--no-index --find-links /wheels" in build
    assert not re.search(r"\b(apt-get|curl|g\+\+|gcc|clang|cmake)\b", TEXT)


def test_the_script_gives_every_argument_and_names_every_variable_that_it_reads() -> None:
    script = BUILD.read_text()
    head = script.partition("set -eu")[0]
    assert set(re.findall(r"^ARG (\w+)", TEXT, re.MULTILINE)) == set(re.findall(r"--build-arg (\w+)=", script))
    assert set(re.findall(r"\$\{([A-Z_]+):-", script)) == set(re.findall(r"^# ([A-Z_]+)  ", head, re.MULTILINE))


def test_the_script_is_shell_and_refuses_an_unknown_device() -> None:
    subprocess.run(["sh", "-n", str(BUILD)], check=True)
    environment = {"PATH": os.environ["PATH"], "PYTHON": sys.executable, "DEVICE": "tpu"}
    done = subprocess.run([str(BUILD)], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "DEVICE is 'tpu'; allowed: cpu, cuda\n")


def test_hadolint_finds_nothing() -> None:
    binary = shutil.which("hadolint") or shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if binary is None:
        pytest.skip("hadolint is not installed: pip install --group deploy")
    done = subprocess.run([binary, "--no-color", str(CONTAINERFILE)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("", 0)
