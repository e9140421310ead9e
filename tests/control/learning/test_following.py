"""The heads of a machine's user that were learnt: installed, named, and removed."""

from pathlib import Path

import pytest
import torch

from prolepsis.control.learning.following import HeadFolder
from prolepsis.engine.models.files.weights import open_checkpoint
from prolepsis.engine.models.heads.aliases import HeadAliases, head_folder
from prolepsis.engine.models.heads.exchange import archive_of
from prolepsis.engine.models.heads.registry import find_head, list_heads
from prolepsis.engine.models.targets.lean_shape import LeanShape
from tests.engine.models.random_heads import record_checksum, save_random_head
from tests.engine.models.tiny import save_tiny


@pytest.fixture
def archive(tmp_path: Path) -> bytes:
    """A head of another machine."""
    save_tiny(tmp_path / "target", "llama", {})
    shape = LeanShape.from_config(open_checkpoint(tmp_path / "target", torch.float32).config)
    root = tmp_path / "there" / "models"
    record_checksum(save_random_head(head_folder(root) / "code@2", shape, {"manifests": ["9f31"]}))
    return archive_of(find_head("code@2", root))


def labels(root: Path) -> list[str]:
    return [entry.label for entry in list_heads(root) if not entry.shipped]


def test_a_head_is_installed_named_and_removed_with_its_aliases(tmp_path: Path, archive: bytes) -> None:
    root = tmp_path / "here" / "models"
    folder = HeadFolder(root)
    for _ in range(2):  # as a server does that was killed in between
        folder.install("code@2", archive, "candidate")
    assert labels(root) == ["code@2"]
    assert HeadAliases(root).of("code", 2) == ("candidate",)
    folder.remove("code@2", "0" * 64)
    assert labels(root) == ["code@2"], "it has other weights: an operator's own head"
    sha256 = find_head("code@2", root).provenance.sha256
    for _ in range(2):
        folder.remove("code@2", sha256)
    assert labels(root) == []
    assert HeadAliases(root).of("code", 2) == ()
