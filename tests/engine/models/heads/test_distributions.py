"""Heads as distributions of their own: built from the repository's folder, installed, found, and used by default."""

import shutil
import tomllib
import zipfile
from pathlib import Path
from typing import cast

import pytest
import torch
from build import BuildBackendException, ProjectBuilder
from pyproject_hooks import quiet_subprocess_runner

from prolepsis.core.config import DEFAULT_MODEL
from prolepsis.engine.models.files.store import KNOWN
from prolepsis.engine.models.files.weights import open_checkpoint
from prolepsis.engine.models.heads.format import CONFIG, HeadStorage, read_config, save_with_checksum
from prolepsis.engine.models.heads.levels import save_levels
from prolepsis.engine.models.heads.registry import CHECKOUT, NAMESPACE, find_head, head_for, list_heads, shipped_folders
from prolepsis.engine.models.load import IDENTITY_DIGITS, LoadedModel
from prolepsis.engine.models.provenance import read_provenance
from prolepsis.engine.models.targets.lean import LeanModel
from prolepsis.engine.models.targets.lean_shape import LeanShape
from prolepsis.engine.text.model_tokenizer import ModelTokenizer
from tests.engine.models.random_heads import random_head, random_levels
from tests.engine.models.tiny import save_tiny
from tests.fakes import Letters
from tests.paths import ROOT

NAME = "qwen2.5-coder-1.5b-instruct"


@pytest.fixture
def target(tmp_path: Path) -> LoadedModel:
    save_tiny(tmp_path / "target", "llama", {})
    checkpoint = open_checkpoint(tmp_path / "target", torch.float32)
    model = LeanModel(checkpoint, LeanShape.from_config(checkpoint.config), "tiny", torch.device("cpu"))
    return LoadedModel(model, cast(ModelTokenizer, Letters()), "tiny", "tiny-identity")


def _project(folder: Path, target: LoadedModel | None) -> Path:
    """Return a copy of the distribution's folder, with a tiny head for `target` in place of the real one."""
    shutil.copytree(ROOT / "heads" / NAME, folder, ignore=shutil.ignore_patterns(NAMESPACE))
    home = folder / NAMESPACE / NAME
    if target is not None:
        assert isinstance(target.model, LeanModel)
        provenance = {"target_fingerprint": target.identity, "version": 99}  # newer than that of the checkout
        config, weights = random_head(target.model.shape, storage=HeadStorage("q8_0", "target"), provenance=provenance)
        save_with_checksum(home, config, weights, {"rope_type": "default", "rope_theta": 10000.0})
        save_levels(home, random_levels(target.model.shape.hidden), {})
        (home / "README.md").write_text("# A tiny head\n")
    return folder


def _wheel(project: Path) -> Path:
    return Path(ProjectBuilder(project, runner=quiet_subprocess_runner).build("wheel", project / "dist"))


def test_an_installed_distribution_is_a_head_by_default(
    tmp_path: Path, target: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel, site = _wheel(_project(tmp_path / "project", target)), tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:  # what pip does with data
        archive.extractall(site)
    root = tmp_path / "models"
    assert head_for("auto", target, root) is None
    monkeypatch.syspath_prepend(site)
    entry = find_head(NAME, root)
    assert entry.folder == site / NAMESPACE / NAME
    assert entry.shipped
    head = head_for("auto", target, root)
    assert head is not None
    assert (head.info.name, head.info.levels) == (f"{NAME}@99", 3)
    assert (entry.folder / "README.md").is_file()


@pytest.mark.parametrize("name", ["smollm2-135m-instruct", NAME])
def test_heads_of_packages_are_of_the_weights_of_the_catalogue(name: str) -> None:
    assert find_head(name).target_fingerprint == KNOWN[name].weights[:IDENTITY_DIGITS]


def test_a_distribution_without_its_head_is_not_built(tmp_path: Path) -> None:
    project = _project(tmp_path / "project", None)
    with pytest.raises(BuildBackendException):
        _wheel(project)


def test_heads_of_a_checkout_are_found_beside_the_package() -> None:
    assert CHECKOUT == ROOT / "heads"
    homes = sorted((ROOT / "heads").glob(f"*/{NAMESPACE}"))
    assert shipped_folders()[: len(homes)] == homes
    names = {home.name for place in homes for home in place.iterdir() if (home / CONFIG).is_file()}
    assert names <= {entry.name for entry in list_heads()}


def test_each_distribution_holds_data_only() -> None:
    for project in (ROOT / "heads").iterdir():
        settings = tomllib.loads((project / "pyproject.toml").read_text())
        about, wheel = settings["project"], settings["tool"]["hatch"]["build"]["targets"]["wheel"]
        assert about["dependencies"] == []
        assert about["license-files"] == ["LICENSE", "NOTICE"]
        assert (project / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
        [head] = (project / NAMESPACE).iterdir()
        assert head.name in (project / "NOTICE").read_text()
        assert about["version"] == str(read_provenance(read_config(head).provenance).version)
        assert about["name"].startswith("prolepsis-head-")
        assert wheel["only-include"] == [NAMESPACE]
        files = [file for file in (project / NAMESPACE).rglob("*") if file.is_file()]
        assert not [file for file in files if file.suffix == ".py"]
        assert sum(file.stat().st_size for file in files) < 25e6


def test_the_engine_requires_the_head_of_the_default_model_at_its_version() -> None:
    engine = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["engine"]
    about = tomllib.loads((ROOT / "heads" / DEFAULT_MODEL / "pyproject.toml").read_text())["project"]
    assert f"{about['name']}=={about['version']}" in engine
