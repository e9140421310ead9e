"""Draft heads by name: those that the package ships and those the user trained or brought, and which fits a target."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog

from prolepsis.core.directories import cache_directory
from prolepsis.core.errors import ModelLoadError
from prolepsis.models.draft_head import DraftHead
from prolepsis.models.head_file import CONFIG, HeadConfig, head_fault, load_head, read_config
from prolepsis.models.lean import LeanModel
from prolepsis.models.load import LoadedModel
from prolepsis.models.native import NativeModel

log = structlog.get_logger(__name__)

SHIPPED = Path(__file__).parent.parent / "heads"
AUTO, NONE = "auto", "none"


@dataclass(frozen=True, slots=True)
class HeadEntry:
    """A head that is here."""

    name: str
    folder: Path
    config: HeadConfig

    @property
    def version(self) -> int:
        return int(self.config.provenance.get("version", 0))

    @property
    def target_fingerprint(self) -> str:
        """`LoadedModel.identity` of the target it was trained for; empty for heads from elsewhere."""
        return str(self.config.provenance.get("target_fingerprint", ""))


def head_folder(root: Path | None = None) -> Path:
    """Return where the user's heads are kept: beside the models."""
    return (root or cache_directory() / "models").parent / "heads"


def list_heads(root: Path | None = None) -> list[HeadEntry]:
    """Return all heads here by name, the user's before shipped ones of the same name; broken ones are left out."""
    found: dict[str, HeadEntry] = {}
    for entry in _entries(SHIPPED, head_folder(root)):
        found[entry.name] = entry
    return [found[name] for name in sorted(found)]


def find_head(name: str, root: Path | None = None) -> HeadEntry:
    """Return the head `name` names: one of `list_heads`, or a folder. Raises `ModelLoadError` where there is none."""
    folder = Path(name)
    if (folder / CONFIG).is_file():
        return HeadEntry(folder.name, folder, read_config(folder))
    heads = {entry.name: entry for entry in list_heads(root)}
    if name not in heads:
        allowed = ", ".join(heads) or "none is here"
        raise ModelLoadError(f"draft_head is {name!r}; allowed: a folder with {CONFIG}, {AUTO}, {NONE}, or: {allowed}")
    return heads[name]


def fitting_head(target: LoadedModel, root: Path | None = None) -> HeadEntry | None:
    """Return the newest head that was trained for exactly this target, None where there is none."""
    fitting = [entry for entry in list_heads(root) if entry.target_fingerprint == target.identity]
    return max(fitting, key=lambda entry: entry.version, default=None)


def open_head(entry: HeadEntry, target: LoadedModel) -> DraftHead:
    """Load a head for a target. Raises `ModelLoadError` naming what differs where it is another's."""
    model = target.model
    if not isinstance(model, NativeModel | LeanModel):
        raise ModelLoadError(f"the forward {model.info.forward} runs no draft heads; allowed: native, lean")
    config, weights = load_head(entry.folder)
    fault = head_fault(config, model.shape, model.info.num_layers)
    if fault is None and entry.target_fingerprint and entry.target_fingerprint != target.identity:
        fault = f"it was trained for a target with fingerprint {entry.target_fingerprint}, not {target.identity}"
    if fault is not None:
        raise ModelLoadError(f"draft head {entry.name} does not fit {model.info.name}: {fault}")
    if isinstance(model, NativeModel):
        from prolepsis.models.native_head import NativeHead

        return NativeHead(entry.name, config, weights, model)
    from prolepsis.models.lean_head import LeanHead

    return LeanHead(entry.name, config, weights, model)


def head_for(name: str, target: LoadedModel, root: Path | None = None) -> DraftHead | None:
    """Return the head that the configuration asks for: "none", "auto" (the fitting one, if any), a name or a folder.

    Raises `ModelLoadError` for one that was named and cannot be used; "auto" never raises.
    """
    if name == NONE:
        return None
    if name != AUTO:
        return open_head(find_head(name, root), target)
    entry = fitting_head(target, root)
    try:
        return open_head(entry, target) if entry is not None else None
    except ModelLoadError as error:
        log.warning("head_unused", head=entry.name if entry else "", reason=str(error))
        return None


def _entries(*roots: Path) -> Iterator[HeadEntry]:
    for file in (file for root in roots for file in sorted(root.glob(f"*/{CONFIG}"))):
        try:
            yield HeadEntry(file.parent.name, file.parent, read_config(file.parent))
        except ModelLoadError as error:
            log.warning("head_unreadable", folder=str(file.parent), reason=str(error))
