"""Draft heads by name and version: those of packages, and heads that the user trained or imported."""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import structlog
import torch

from prolepsis.core.errors import ConfigError, ModelLoadError
from prolepsis.engine.models.heads.aliases import HeadAliases, head_folder
from prolepsis.engine.models.heads.base import DraftHead
from prolepsis.engine.models.heads.block import BlockHead, BlockLayer
from prolepsis.engine.models.heads.foreign import HeadTensors, config_of
from prolepsis.engine.models.heads.format import CONFIG, WEIGHTS, HeadConfig, head_fault, load_head, weights_checksum
from prolepsis.engine.models.heads.lean import LeanHead
from prolepsis.engine.models.heads.levels import load_levels
from prolepsis.engine.models.heads.medusa import MedusaHead, MedusaWeights
from prolepsis.engine.models.heads.native import NativeHead
from prolepsis.engine.models.load import IDENTITY_DIGITS, LoadedModel
from prolepsis.engine.models.provenance import Provenance, read_provenance
from prolepsis.engine.models.targets.lean import LeanModel
from prolepsis.engine.models.targets.lean_shape import LeanShape
from prolepsis.engine.models.targets.native import NativeModel

log = structlog.get_logger(__name__)

NAMESPACE = "prolepsis_heads"
"""Package of the distributions that hold a head each: prolepsis_heads/NAME is its folder."""
CHECKOUT = Path(__file__).parents[5] / "heads"
"""Where a checkout has these distributions."""
AUTO, NONE = "auto", "none"
CHAMPION = "champion"
"""The alias of a version that "auto" takes."""
_TRAINED_FOR = "it was trained for"


@dataclass(frozen=True, slots=True)
class HeadEntry:
    """An installed head: a folder called NAME or NAME@VERSION."""

    folder: Path
    config: HeadConfig
    provenance: Provenance
    kind: ClassVar[str] = "head"

    @property
    def name(self) -> str:
        return self.folder.name.partition("@")[0]

    @property
    def version(self) -> int:
        """Version in the name of the folder, else in the provenance, else 1."""
        named = self.folder.name.partition("@")[2]
        return int(named) if named.isdecimal() else self.provenance.version or 1

    @property
    def label(self) -> str:
        """NAME@VERSION, which identifies this head."""
        return f"{self.name}@{self.version}"

    @property
    def target(self) -> str:
        """Name of the target it was trained for; empty if unknown."""
        return self.provenance.target or self.config.verifier

    @property
    def target_fingerprint(self) -> str:
        """`LoadedModel.identity` of the target it was trained for; empty for heads from elsewhere."""
        return self.provenance.target_fingerprint

    @property
    def is_learnt(self) -> bool:
        """Whether it learnt from traffic, so that it drafts only where it is named."""
        return bool(self.provenance.manifests or self.provenance.serves)

    @property
    def size(self) -> int:
        file = self.folder / WEIGHTS
        return file.stat().st_size if file.is_file() else 0

    @property
    def shipped(self) -> bool:
        return any(self.folder.is_relative_to(home) for home in shipped_folders())


def shipped_folders() -> list[Path]:
    """Return the folders of heads that come with packages: those of a checkout, and installed ones."""
    checkout = sorted(CHECKOUT.glob(f"*/{NAMESPACE}"))
    spec = find_spec(NAMESPACE)
    installed = spec.submodule_search_locations if spec is not None else None
    return [*checkout, *(Path(place) for place in installed or ())]


def list_heads(root: Path | None = None) -> list[HeadEntry]:
    """Return all installed heads by name and version, without damaged ones; the user's replace those of packages."""
    entries: dict[tuple[str, int], HeadEntry] = {}
    for entry in _entries(*shipped_folders(), head_folder(root)):
        entries[entry.name, entry.version] = entry
    return [entries[key] for key in sorted(entries)]


def find_head(name: str, root: Path | None = None, *, also: str = "") -> HeadEntry:
    """Return the head called `name`: NAME@VERSION, NAME@ALIAS, the newest of NAME, or a folder.

    Raises `ModelLoadError` if there is none; it says what is allowed, and what is `also` allowed there.
    """
    folder = Path(name)
    if (folder / CONFIG).is_file():
        return _entry(folder.resolve())
    heads = list_heads(root)
    wanted = HeadAliases(root).resolved(name)
    matching = [entry for entry in heads if wanted in (entry.name, entry.label)]
    if not matching:
        allowed = ", ".join(entry.label for entry in heads) or "no head is installed"
        raise ModelLoadError(f"there is no draft head {name!r}; allowed: {allowed}, or a folder with {CONFIG}{also}")
    return matching[-1]


def fitting_entry(identity: str, root: Path | None = None) -> HeadEntry | None:
    """Return the head for exactly the target of this `identity` that drafts unless another is named, or None.

    That is one which an operator made the champion, else a shipped one; of several the one with the best recorded
    acceptance. A head that was only imported, as for a trial, is none of them, whatever it records, and one that learnt
    from traffic never is. Of each name only the newest version is considered. Raises `ConfigError` if the file of
    aliases is damaged.
    """
    fitting = [entry for entry in list_heads(root) if entry.target_fingerprint == identity and not entry.is_learnt]
    champions = [entry for entry in fitting if is_champion(entry, root)]
    newest = {entry.name: entry for entry in champions or fitting if champions or entry.shipped}
    return max(newest.values(), key=lambda entry: entry.provenance.chain_of_3 or 0.0, default=None)


def is_champion(entry: HeadEntry, root: Path | None = None) -> bool:
    return CHAMPION in HeadAliases(root).of(entry.name, entry.version)


def seen_by_auto(entry: HeadEntry, identity: str, root: Path | None = None) -> str:
    """Return whether and why "auto" takes a head, or why not; empty for one of another target than `identity`."""
    if entry.target_fingerprint != identity:
        return "" if entry.target_fingerprint else "it records no target, and drafts if draft_head names it"
    if entry.is_learnt:
        number = len(entry.provenance.serves)
        serves = f"serves {number} tenant{'s' * (number > 1)}; " if number else ""
        return f"{serves}{AUTO} takes none that learnt from traffic"
    if not entry.shipped and not is_champion(entry, root):
        return f"it was only imported; `prolepsis models alias {entry.label} {CHAMPION}` adopts it"
    taken = fitting_entry(identity, root)
    assert taken is not None, "this one could be taken"
    kind = "shipped" if entry.shipped else CHAMPION
    return f"takes it: {kind}" if entry == taken else f"{taken.label} comes before it"


def open_head(entry: HeadEntry, target: LoadedModel) -> DraftHead:
    """Load a head for a target. Raises `ModelLoadError` with the difference if it does not fit, or if it is damaged."""
    model, fault = target.model, misfit_of(entry, target)
    if fault is not None:
        raise ModelLoadError(f"draft head {entry.label} does not fit {model.info.name}: {fault}")
    assert isinstance(model, NativeModel | LeanModel), "heads fit these forwards only"
    check_checksum(entry)
    if entry.config.layout != "eagle3":
        rows = model.embedding_rows(torch.zeros(1, dtype=torch.int64))
        head = MedusaHead if entry.config.layout == "medusa" else BlockHead
        return head(entry.label, entry.config, HeadTensors(entry.folder, entry.label, rows), model)
    config, weights = load_head(entry.folder, model.output_rows)
    levels = load_levels(entry.folder, config.shape.hidden)
    if isinstance(model, NativeModel):
        return NativeHead(entry.label, config, weights, model, levels)
    return LeanHead(entry.label, config, weights, model, levels)


def check_whole(entry: HeadEntry) -> None:
    """Raise `ModelLoadError` if tensors are missing or misshapen; output rows of the target are not needed for that."""
    config = entry.config
    if config.layout == "eagle3":
        load_head(entry.folder, lambda ids: torch.empty(len(ids), 0))
    else:
        like = torch.empty(0, dtype=torch.bfloat16)
        tensors = HeadTensors(entry.folder, entry.provenance.source or entry.label, like)
        (MedusaWeights if config.layout == "medusa" else BlockLayer)(tensors, config)


def misfit_of(entry: HeadEntry, target: LoadedModel) -> str | None:
    """Return why a head cannot draft for a loaded target; None if it can."""
    model = target.model
    if not isinstance(model, NativeModel | LeanModel):
        return f"the forward {model.info.forward} cannot run draft heads; allowed: native, lean"
    return misfit(entry, model.shape, target.identity)


def misfit(entry: HeadEntry, shape: LeanShape, identity: str) -> str | None:
    """Return the difference between a head's target and one of this `shape` and `identity`; None if there is none.

    A head without a recorded target fits every target of its sizes.
    """
    fault, recorded = head_fault(entry.config, shape, len(shape.layers)), entry.target_fingerprint
    if fault is not None or not recorded or recorded == identity:
        return fault
    if len(recorded) < IDENTITY_DIGITS == len(identity):
        return (
            f"{_TRAINED_FOR} {entry.target or 'a target'} with fingerprint {recorded}, which depends on the name of "
            f"the file and is no longer used; if these are its weights, write {identity} as "
            f"prolepsis.target_fingerprint into {entry.folder / CONFIG}"
        )
    return (
        f"{_TRAINED_FOR} other weights: {entry.target or 'a target'} with fingerprint {recorded}, not "
        f"{identity or 'an unknown one'}"
    )


def check_checksum(entry: HeadEntry) -> None:
    """Raise `ModelLoadError` if the weights do not match the recorded checksum."""
    recorded = entry.provenance.sha256
    if recorded and (checksum := weights_checksum(entry.folder)) != recorded:
        raise ModelLoadError(
            f"{entry.folder / WEIGHTS} is damaged: its SHA-256 is {checksum}, not the recorded {recorded}; "
            "import or train the head again"
        )


def head_for(name: str, target: LoadedModel, root: Path | None = None) -> DraftHead | None:
    """Return the head of `chosen_head` alone."""
    return chosen_head(name, target, root)[0]


def chosen_head(name: str, target: LoadedModel, root: Path | None = None) -> tuple[DraftHead | None, str]:
    """Return the configured head ("none", "auto": the fitting one, a name or a folder) and why it is, or is none.

    Raises `ModelLoadError` for a named head that cannot be used; "auto" never raises.
    """
    if name == NONE:
        return None, f"draft_head is {NONE}"
    if name != AUTO:
        return open_head(find_head(name, root, also=f", {AUTO} or {NONE}"), target), f"draft_head is {name}"
    try:
        entry = fitting_entry(target.identity, root)
        if entry is None:
            return None, f"no head for these weights ({target.identity}) is shipped or champion{_nearest(target, root)}"
        chosen = "shipped" if entry.shipped else CHAMPION
        length = entry.provenance.chain_of_3
        measured = "" if length is None else f", {length:.2f} tokens a pass with drafts of 3 when it was trained"
        return open_head(entry, target), f"{chosen} for these weights ({target.identity}){measured}"
    except (ModelLoadError, ConfigError) as error:
        log.warning("head_unused", reason=str(error))
        return None, str(error)


def _nearest(target: LoadedModel, root: Path | None) -> str:
    """Return the head that comes nearest with its misfit; one of other sizes only where there is no other."""
    heads = [(entry, misfit_of(entry, target) or "") for entry in list_heads(root)]
    heads.sort(key=lambda head: (not head[1], head[1].startswith(_TRAINED_FOR), bool(head[0].target_fingerprint)))
    return "".join(f"; nearest: {e.label}, {m or seen_by_auto(e, target.identity, root)}" for e, m in heads[-1:])


def _entries(*roots: Path) -> Iterator[HeadEntry]:
    for file in (file for root in roots for file in sorted(root.glob(f"[!.]*/{CONFIG}"))):
        try:
            yield _entry(file.parent)
        except ModelLoadError as error:
            log.warning("head_unreadable", folder=str(file.parent), reason=str(error))


def _entry(folder: Path) -> HeadEntry:
    config = config_of(folder)
    return HeadEntry(folder, config, read_provenance(config.provenance))
