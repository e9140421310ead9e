"""What a model is called where it is not given by a name, and which model of the catalogue it is."""

import re
from pathlib import Path

from prolepsis.engine.models.files.identity import weights_identity
from prolepsis.engine.models.files.source import ModelSource
from prolepsis.engine.models.files.store import KNOWN, KnownModel, open_store

_SAY_NOTHING = frozenset(
    {"", "model", "models", "llama", "hf", "gguf", "tmp", "temp", "checkpoint", "output", "merged"}
)
"""What converters write as `general.name` where they know none: the folder that they found the weights in."""
_HASH = re.compile(r"[0-9a-f]{32,}")


def model_name(given: str, source: ModelSource, model_dir: Path | None = None) -> str:
    """Return the name under which a model is served, never a path.

    A known name or a hub id stays; a file has the name of the catalogue's model that it is, else that in its metadata
    in lower case with hyphens, else its own; a folder has its own name.
    """
    if given in KNOWN or open_store(model_dir).show(given) is not None:
        return given
    known = catalogue_model(given, source)
    return known.name if known is not None else _stated_name(source) or own_name(_path(source))


def catalogue_model(given: str, source: "ModelSource | None") -> KnownModel | None:
    """Return the model of the catalogue that is meant, or that a file says to be or is; None: none is.

    Whatever a file is called, its weights are read where its size is that of a packaged one.
    """
    if given in KNOWN or source is None:
        return KNOWN.get(given)
    path = _path(source)
    by_name = KNOWN.get(_stated_name(source)) or KNOWN.get(own_name(path).lower())
    if by_name is not None:
        return by_name
    packaged = [known for known in KNOWN.values() if known.package and known.package.size == path.stat().st_size]
    return next((known for known in packaged if weights_identity(source) == known.weights), None)


def own_name(path: Path) -> str:
    """Return the name of a file without its ending, or of a folder, with hyphens for spaces and the like."""
    resolved = path.resolve()
    return re.sub(r"[^\w.-]+", "-", resolved.stem if resolved.is_file() else resolved.name).strip("-") or "model"


def _stated_name(source: ModelSource) -> str:
    """Return the name in a GGUF file's metadata, as 'qwen2.5-coder-1.5b-instruct'; empty where it says nothing."""
    stated = None if isinstance(source, Path) else source.metadata.get("general.name")
    name = re.sub(r"[^a-z0-9._]+", "-", str(stated or "").lower()).strip("-.").removesuffix("-gguf")
    is_name = name not in _SAY_NOTHING and not _HASH.fullmatch(name) and any(map(str.isalpha, name))
    return name if is_name else ""


def _path(source: ModelSource) -> Path:
    return source if isinstance(source, Path) else source.path
