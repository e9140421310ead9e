"""What the files of `deploy` and their page say, as values that tests compare with the code."""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from prolepsis.server.cli.main import COMMANDS
from tests.paths import ROOT

DEPLOY = ROOT / "deploy"
PAGE = ROOT / "docs" / "how-to" / "deploy.md"
CHART = DEPLOY / "helm" / "prolepsis"
CONTAINERFILE = DEPLOY / "container" / "Containerfile"
UNIT = DEPLOY / "systemd" / "prolepsis.service"
COMPOSE = DEPLOY / "compose" / "compose.yaml"
_COMMAND = re.compile(rf"(?:^|[ /])prolepsis ((?:{'|'.join(COMMANDS)})\b[^|&;>`\n#]*)", re.MULTILINE)
_LISTED = re.compile(r"\[\"?(serve\b[^\]]*)\]")


@dataclass(frozen=True, slots=True)
class Written:
    """One file as text."""

    path: Path
    text: str

    def names(self, pattern: str) -> set[str]:
        return set(re.findall(pattern, self.text))

    def commands(self) -> Iterator[Sequence[str]]:
        """Yield the arguments of each command of ours."""
        joined = self.text.replace("\\\n", " ")
        yield from (shlex.split(found) for found in _COMMAND.findall(joined))
        yield from (re.findall(r"[^\s,\"]+", found) for found in _LISTED.findall(joined))


def written_files() -> list[Written]:
    not_written = ("viewer.key", "*.pyc")
    paths = [path for path in sorted(DEPLOY.rglob("*")) if path.is_file() and not any(map(path.match, not_written))]
    return [Written(path, path.read_text(encoding="utf-8")) for path in [*paths, PAGE]]


def image_variables() -> dict[str, str]:
    """Return the environment that the image sets."""
    [block] = re.findall(r"^ENV (PROLEPSIS_(?:.*\\\n)*.*)$", CONTAINERFILE.read_text(), re.MULTILINE)
    return dict(part.split("=", 1) for part in block.replace("\\\n", " ").split())


def unit_settings() -> list[tuple[str, str]]:
    """Return the assignments of the unit, in order; a key may come several times."""
    lines = UNIT.read_text().splitlines()
    return [(key, value) for key, mark, value in (line.partition("=") for line in lines if line[:1].isalpha()) if mark]


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text())
