"""Imports point down only, as the contracts in pyproject.toml say; no modules import one another in a circle."""

import ast
import tomllib
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"


def test_every_package_has_its_place_among_the_layers() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [layers] = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    placed = {
        part.strip().removeprefix("prolepsis.") for layer in layers for part in layer.replace(":", "|").split("|")
    }
    packages = {folder.parent.name for folder in (SOURCE / "prolepsis").glob("*/__init__.py")}
    split = {name.partition(".")[0] for name in placed if "." in name}
    parts = {f"{name}.{one.stem}" for name in split for one in (SOURCE / "prolepsis" / name).glob("[!_]*")}
    assert packages - split | parts == placed


def test_no_import_points_up(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status = lint_imports(str(ROOT / "pyproject.toml"), cache_dir=str(tmp_path), no_logo=True)
    assert status == 0, capsys.readouterr().out


def test_no_modules_import_one_another_in_a_circle() -> None:
    modules = {name_of(file): file for file in SOURCE.rglob("*.py")}
    TopologicalSorter({name: set(imported(file, modules)) for name, file in modules.items()}).prepare()


def test_only_commands_import_commands() -> None:
    """What serves needs no library of terminals."""
    modules = {name_of(file): file for file in SOURCE.rglob("*.py")}
    commands = {name for name in modules if "commands" in name.split(".") or name.startswith("prolepsis.terminal")}
    for name in modules.keys() - commands:
        if not name.startswith("prolepsis.cli."):
            assert not commands & set(imported(modules[name], modules)), name


def test_no_test_imports_a_benchmark() -> None:
    for file in (ROOT / "tests").rglob("*.py"):
        roots = {one.partition(".")[0] for one in imported(file, {})}
        assert "benchmarks" not in roots, file


def name_of(file: Path) -> str:
    return ".".join(file.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def imported(file: Path, modules: dict[str, Path]) -> Iterator[str]:
    """Yield the modules that a file imports when it is imported itself; names of `modules` are the modules."""
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{one.name}" for one in node.names]
            yield from (name if name in modules else node.module for name in names)
        elif isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
