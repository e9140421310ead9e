"""Names and imports of the package: rooms and layers, cycles, names in several modules, packages of others."""

import ast
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import packages_distributions
from itertools import chain
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

from tests.paths import ROOT

SOURCE = ROOT / "src"
ROOMS = {"lab", "training", "adapters", "server", "ops", "control", "remote", "engine", "core"}
UPPER = {"server": {"cli"}, "engine": {"commands"}, "core": {"telemetry", "terminal"}}
"""Folders of a room that its own modules do not import."""
LOWER = {"engine": {"drafting", "models", "text", "kv", "sampling", "native"}}
"""Folders of a room that import none of its own modules."""
CYCLES = ({"adapters.ray.arguments", "adapters.ray.serve", "adapters.ray.start"},)
"""Import cycles that are still there, imports inside functions included; none may come."""
SHARED_NAMES = 1
"""Most class names that may stand in two or more modules; to be lowered with the names."""
BESIDES = {"vllm"}
"""Imported and no extra: vLLM's requirements contradict ours, so people install it by hand (docs/how-to/vllm.md)."""
DRIVERS = {"psycopg", "python-multipart"}
"""Imported by SQLAlchemy, which finds it by the URL of the database, and by Starlette, to read forms."""


@cache
def modules() -> Mapping[str, ast.Module]:
    trees = {}
    for file in sorted((SOURCE / "prolepsis").rglob("*.py")):
        parts = file.relative_to(SOURCE).with_suffix("").parts
        trees[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(file.read_text())
    return trees


def imported(node: ast.AST) -> Iterator[str]:
    """Yield the modules that run-time imports name, also those inside functions."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    if isinstance(node, ast.ImportFrom) and node.module is not None:
        for alias in node.names:
            below = f"{node.module}.{alias.name}"
            yield below if below in modules() else node.module
    for child in ast.iter_child_nodes(node):
        yield from imported(child)


def cycles() -> set[frozenset[str]]:
    """Return the groups of modules that reach each other."""
    graph = {name: {other for other in imported(tree) if other in modules()} for name, tree in modules().items()}
    reached = {name: _reached(graph, name) for name in graph}
    groups = (frozenset(other for other in reached[name] if name in reached[other]) for name in graph)
    return {group for group in groups if len(group) > 1}


def _reached(graph: Mapping[str, set[str]], start: str) -> set[str]:
    found, waiting = set[str](), [start]
    while waiting:
        new = graph[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def test_the_package_has_its_rooms_and_no_more() -> None:
    assert {folder.parent.name for folder in (SOURCE / "prolepsis").glob("*/__init__.py")} == ROOMS


def test_no_import_points_up(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The contracts between rooms, and between the folders of a room, are in pyproject.toml."""
    status = lint_imports(str(ROOT / "pyproject.toml"), cache_dir=str(tmp_path), no_logo=True)
    assert status == 0, capsys.readouterr().out


def test_modules_of_a_room_stand_between_its_folders() -> None:
    for name, tree in modules().items():
        _, room, *rest = [*name.split("."), ""]
        if len(rest) < 2 or not rest[0]:
            continue
        reached = {tuple(other.split(".")[1:3]) for other in imported(tree) if other.count(".") >= 2}
        folders = UPPER.get(room, set()) | LOWER.get(room, set())
        own = {module for above, module in reached if above == room and module not in folders}
        if rest[0] not in folders:
            assert not {(room, upper) for upper in UPPER.get(room, set())} & reached, name
        elif rest[0] in LOWER.get(room, set()):
            assert not {module for module in own if f"prolepsis.{room}.{module}" in modules()}, name


def test_what_serves_meets_the_engine_by_its_text_side_and_client_alone() -> None:
    """Commands start engines and read their files."""
    found = {
        other
        for name, tree in modules().items()
        if name.startswith("prolepsis.server.") and not name.startswith("prolepsis.server.cli")
        for other in imported(tree)
        if other.startswith("prolepsis.engine.") and not other.startswith("prolepsis.engine.text.")
    }
    assert found == {"prolepsis.engine.shares"}, "admission divides places as the engine does"


def test_no_test_imports_a_benchmark() -> None:
    for file in (ROOT / "tests").rglob("*.py"):
        assert not re.search(r"^\s*(from|import) benchmarks\b", file.read_text(), re.MULTILINE), file


def test_no_new_modules_import_each_other() -> None:
    known = [{f"prolepsis.{name}" for name in group} for group in CYCLES]
    assert [group for group in cycles() if group not in known] == []


def test_fewer_class_names_stand_in_several_modules() -> None:
    places = defaultdict[str, set[str]](set)
    for name, tree in modules().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                places[node.name].add(name)
    assert sum(len(where) > 1 for where in places.values()) == SHARED_NAMES, (
        "lower SHARED_NAMES, or rename the new class"
    )


OURS = {"prolepsis", "prolepsis-head-smollm2-135m"}
"""Distributions of this repository that extras require and nothing imports: its own extras, and data."""


def test_declared_packages_are_imported_and_imported_ones_are_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    declared = {re.split(r"[^A-Za-z0-9_-]", need, maxsplit=1)[0] for need in needed} - OURS
    distributions = packages_distributions()
    imported = {
        name: {one.lower().replace("_", "-") for one in distributions.get(name, [name])} for name in others_imported()
    }
    needed_here = {one for found in imported.values() for one in found if one in declared}
    assert declared == needed_here | DRIVERS, "imported nowhere"
    assert {name for name, found in imported.items() if not found & declared} == BESIDES, "not declared"


def others_imported() -> set[str]:
    """Return the top-level packages of others that modules import anywhere."""
    names: set[str] = set()
    for node in (node for tree in modules().values() for node in ast.walk(tree)):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
        elif isinstance(node, ast.Import):
            names |= {one.name.partition(".")[0] for one in node.names}
    return names - sys.stdlib_module_names - {"prolepsis"}
