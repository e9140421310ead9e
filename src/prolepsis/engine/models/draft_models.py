"""Draft models trained for a target: model folders with a provenance in config.json (`engine.models.provenance`)."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import structlog

from prolepsis.core.errors import ModelLoadError
from prolepsis.engine.models.files.store import open_store, resolve
from prolepsis.engine.models.load import LoadedModel
from prolepsis.engine.models.provenance import Provenance, provenance_of

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class DraftModelEntry:
    """An installed draft model."""

    name: str
    folder: Path
    provenance: Provenance
    kind: ClassVar[str] = "draft-model"

    @property
    def version(self) -> int:
        return self.provenance.version or 1

    @property
    def target(self) -> str:
        return self.provenance.target

    @property
    def size(self) -> int:
        return sum(file.stat().st_size for file in self.folder.glob("*.safetensors"))


def list_draft_models(root: Path | None = None) -> list[DraftModelEntry]:
    """Return the installed draft models by name; broken ones are logged and left out."""
    entries: list[DraftModelEntry] = []
    for folder in sorted(open_store(root).root.glob("[!.]*/")):
        try:
            provenance = provenance_of(folder)
        except ModelLoadError as error:
            log.warning("draft_model_unreadable", folder=str(folder), reason=str(error))
            continue
        if provenance is not None:
            entries.append(DraftModelEntry(folder.name.replace("--", "/"), folder, provenance))
    return entries


def warn_of_other_target(name: str, target: LoadedModel, root: Path | None = None) -> None:
    """Log a warning if the draft model `name` was trained for other weights than the target's: it works, but less well.

    A different tokenizer is refused by `engine.drafting.proposers.vocabulary`.
    """
    path = resolve(name, root)
    provenance = provenance_of(path) if path.is_dir() else None
    trained_for = provenance.target_fingerprint if provenance is not None else ""
    if trained_for and trained_for != target.identity:
        log.warning("draft_model_of_other_target", draft_model=name, trained_for=trained_for, target=target.identity)
