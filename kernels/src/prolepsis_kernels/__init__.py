"""The sources of the kernels, the libraries that were built from them, and how each is built."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parent / "sources"
LIBRARIES = Path(__file__).parent / "libraries"
"""Libraries that came with the wheel, `NAME.so`; an editable installation has none."""


@dataclass(frozen=True, slots=True)
class BuildSpec:
    """How a shared library is built, and what it needs of the processor."""

    name: str
    machine: str  # as `platform.machine()` names it, or "any"
    needs: frozenset[str]  # feature flags of the processor, as Linux names them
    files: tuple[str, ...]  # in `folder`, whose headers they include
    options: tuple[str, ...]  # of the compiler
    links: tuple[str, ...]  # of the linker
    folder: Path = SOURCES

    @property
    def sources_hash(self) -> str:
        """The SHA-256 of what `sha256sum` says of the sorted files in `folder`: of their names and contents."""
        files = sorted(path for path in self.folder.iterdir() if path.is_file())
        lines = (f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
        return hashlib.sha256("".join(lines).encode()).hexdigest()


def declared() -> tuple[BuildSpec, ...]:
    """Return all libraries; those of the forward, one for each instruction set, stand fastest first."""
    content = json.loads((SOURCES / "libraries.json").read_text())
    common, links = tuple(content["options"]), tuple(content["links"])
    return tuple(
        BuildSpec(
            each["name"],
            each["machine"],
            frozenset(each["needs"]),
            tuple(each["files"]),
            (*common, *each["flags"]),
            links,
        )
        for each in content["libraries"]
    )
