"""Imports point down only, as the contracts in pyproject.toml say."""

import tomllib
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

ROOT = Path(__file__).parent.parent


def test_every_package_has_its_place_among_the_layers() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [layers] = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    placed = {part.strip().removeprefix("prolepsis.") for layer in layers for part in layer.split("|")}
    packages = {folder.parent.name for folder in (ROOT / "src" / "prolepsis").glob("*/__init__.py")}
    assert packages == placed


def test_no_import_points_up(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status = lint_imports(str(ROOT / "pyproject.toml"), cache_dir=str(tmp_path), no_logo=True)
    assert status == 0, capsys.readouterr().out
