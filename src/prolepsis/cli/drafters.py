"""What the `models` commands show of draft heads and draft models."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from prolepsis.core.errors import ModelLoadError

if TYPE_CHECKING:
    from prolepsis.models.draft_models import DraftModelEntry
    from prolepsis.models.heads.registry import HeadEntry

MEGABYTE = 1e6
TITLE = "draft heads and draft models (chain of 3: tokens of a step, held out)"
COLUMNS = ("kind", "name", "version", "trained for", "chain of 3", "MB", "from")
HEAD, DRAFT_MODEL = "head", "draft-model"


def drafters(root: Path | None) -> "list[HeadEntry | DraftModelEntry]":
    """Return all heads and draft models that are here."""
    from prolepsis.models.draft_models import list_draft_models
    from prolepsis.models.heads.registry import list_heads

    return [*list_heads(root), *list_draft_models(root)]


def find_drafter(name: str, root: Path | None) -> "HeadEntry | DraftModelEntry | None":
    """Return the newest head or draft model called `name`, or exactly NAME@VERSION; None where there is none."""
    matching = [entry for entry in drafters(root) if name in (entry.name, f"{entry.name}@{entry.version}")]
    return matching[-1] if matching else None


def row(entry: "HeadEntry | DraftModelEntry") -> list[str]:
    """Return the cells of `COLUMNS`."""
    length = entry.provenance.chain_of_3
    return [
        _kind(entry),
        entry.name,
        str(entry.version),
        entry.target or "not stated",
        "not measured" if length is None else f"{length:.2f}",
        f"{entry.size / MEGABYTE:.1f}",
        _origin(entry),
    ]


def described(entry: "HeadEntry | DraftModelEntry") -> dict[str, object]:
    """Return all that is known of a head or draft model, as JSON values."""
    said = entry.provenance
    return {
        "kind": _kind(entry),
        "name": entry.name,
        "version": entry.version,
        "path": str(entry.folder),
        "from": _origin(entry),
        "size": entry.size,
        "target": entry.target or None,
        "target_fingerprint": said.target_fingerprint or None,
        "tokenizer_fingerprint": said.tokenizer_fingerprint or None,
        "sha256": said.sha256 or None,
        "checksum": _checksum(entry),
        "chain_of_3": None if said.chain_of_3 is None else round(said.chain_of_3, 4),
        "acceptance": {
            kind: {"hits": counts.hits, "trials": counts.trials, "chain_of_3": round(counts.length(), 4)}
            for kind, counts in said.acceptance.items()
        },
        "training": dict(said.training),
    }


def facts(entry: "HeadEntry | DraftModelEntry") -> list[tuple[str, object]]:
    """Return the same for people: one line for each kind of prompt and each word on training."""
    plain = {name: value for name, value in described(entry).items() if name not in ("acceptance", "training")}
    length = entry.provenance.chain_of_3
    plain["chain_of_3"] = "not measured" if length is None else f"{length:.2f} tokens a step"
    rates = [(f"chain_of_3 {kind}", f"{counts.length():.2f}") for kind, counts in entry.provenance.acceptance.items()]
    training = [(name, _text(value)) for name, value in entry.provenance.training.items()]
    return [*plain.items(), *(rate for rate in rates if rate[0] != "chain_of_3 all"), *training]


def _kind(entry: "HeadEntry | DraftModelEntry") -> str:
    from prolepsis.models.heads.registry import HeadEntry

    return HEAD if isinstance(entry, HeadEntry) else DRAFT_MODEL


def _origin(entry: "HeadEntry | DraftModelEntry") -> str:
    from prolepsis.models.heads.registry import HeadEntry

    shipped = isinstance(entry, HeadEntry) and entry.shipped
    return "shipped" if shipped else entry.provenance.source or "here"


def _checksum(entry: "HeadEntry | DraftModelEntry") -> str:
    from prolepsis.models.heads.format import weights_checksum

    recorded = entry.provenance.sha256
    if not recorded:
        return "not recorded"
    try:
        found = weights_checksum(entry.folder)
    except ModelLoadError:
        found = ""
    return "matches" if found == recorded else "differs: the file is damaged"


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
