"""Names and imports of the package: import cycles, and class names that stand in several modules."""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
CYCLES = ({"ray.arguments", "ray.serve", "ray.start"},)
"""Import cycles that are still there, imports inside functions included; none may come."""
SHARED_NAMES = 2
"""Most class names that may stand in two or more modules; to be lowered with the names."""


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
