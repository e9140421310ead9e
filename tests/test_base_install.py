"""The base of the package alone: its own dependencies are on the path, those of its extras are not."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import httpx2
import pytest
from packaging.requirements import Requirement

from tests.adapters.upstream.test_start import Spelled
from tests.commands import free_port, prolepsis
from tests.commands import serving as running_server
from tests.control.controls.flag_files import flag, write
from tests.loopback import serving
from tests.paths import ROOT
from tests.training.targets import save_target

PACKAGES, MEGABYTES = 54, 110
"""The most that the base may bring with it, bytecode not counted; to be lowered with what leaves."""

NEED_EXTRAS = """
import sys
from typer.testing import CliRunner
from prolepsis.server.cli.main import app
flags = ["serve", "--engine=upstream", f"--flags={sys.argv[1]}"]
for words, extra in ((["serve"], "engine"), (["generate", "hello"], "engine"), (["bench"], "engine"), (flags, "flags")):
    result = CliRunner().invoke(app, words)
    print(result.exit_code, type(result.exception).__name__, f"pip install 'prolepsis[{extra}]'" in result.stderr)
"""


def closure(needs: Iterable[str]) -> Iterator[str]:
    """Yield the distributions that requirements bring with them here, each once."""
    seen, waiting = set[str](), [Requirement(need) for need in needs]
    while waiting:
        need = waiting.pop()
        name = re.sub(r"[-_.]+", "-", need.name).lower()
        extras = need.extras or {""}
        if name in seen or (need.marker and not need.marker.evaluate()):
            continue
        try:
            found = distribution(name)
        except PackageNotFoundError:  # for another system, or bound to an extra that is not asked for
            continue
        seen.add(name)
        yield name
        for line in found.requires or ():
            further = Requirement(line)
            if further.marker is None or any(further.marker.evaluate({"extra": extra}) for extra in extras):
                further.marker = None
                waiting.append(further)


def base_packages() -> Iterator[str]:
    return closure(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"])


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The environment of a Python that finds the package and its base dependencies, and nothing else."""
    site = tmp_path_factory.mktemp("site")
    for name in base_packages():
        found = distribution(name)
        for file in found.files or ():
            part = Path(*file.parts[:2])  # distributions share the first one
            if ".." not in file.parts and not (site / part).exists():
                (site / part).parent.mkdir(exist_ok=True)
                (site / part).symlink_to(Path(str(found.locate_file(part))))
    return {**os.environ, "PYTHONPATH": f"{site}:{ROOT / 'src'}", "PROLEPSIS_CACHE": str(site / "cache")}


def alone(*arguments: str) -> list[str]:
    """Return our command line for a Python without the packages that are installed beside it."""
    python, *rest = prolepsis(*arguments)
    return [python, "-S", *rest]


def test_the_base_is_light() -> None:
    sizes = {name: sum(file.size or 0 for file in distribution(name).files or ()) for name in base_packages()}
    assert len(sizes) <= PACKAGES, sorted(sizes)
    assert sum(sizes.values()) <= MEGABYTES * 10**6, sizes


def test_there_is_no_torch(base: Mapping[str, str]) -> None:
    program = "import importlib.util as u; print([n for n in ('torch', 'numpy', 'transformers') if u.find_spec(n)])"
    done = subprocess.run([sys.executable, "-S", "-c", program], env=base, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_base_serves_in_front_of_another_engine(base: Mapping[str, str], tmp_path: Path) -> None:
    folder, port = save_target(tmp_path / "model"), free_port()
    with serving(Spelled(folder)) as upstream:
        options = {"engine": "upstream", "model": str(folder), "upstream": f"plain={upstream}", "port": str(port)}
        options |= {"store": f"sqlite:///{tmp_path / 'store.sqlite'}", "served-model-names": "tiny"}
        command = alone("serve", *(f"--{name}={value}" for name, value in options.items()))
        url = f"http://127.0.0.1:{port}"
        with running_server(command, f"{url}/health/ready", tmp_path / "log", base):
            body = {"model": "tiny", "prompt": "Once", "max_tokens": 64, "temperature": 0}
            answer = httpx2.post(f"{url}/v1/completions", json=body).json()
            page = httpx2.get(f"{url}/console")
    assert answer["choices"][0]["text"] == "there was"
    assert page.status_code == 200


def test_a_command_that_needs_an_extra_says_what_to_install(base: Mapping[str, str], tmp_path: Path) -> None:
    command = [sys.executable, "-S", "-c", NEED_EXTRAS, str(write(tmp_path / "flags.json", flag()))]
    done = subprocess.run(command, check=True, env=base, capture_output=True, text=True)
    assert done.stdout == 4 * "2 SystemExit True\n"
