"""The files of a model in GGUF: one, or the parts into which llama.cpp's `gguf-split` cuts it.

The first part holds the metadata; each part says its number, how many there are, and how many tensors all have.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from prolepsis.core.errors import ModelLoadError
from prolepsis.engine.models.files.gguf_container import GgufContainer

_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE | re.DOTALL)
_COUNT, _NUMBER, _TENSORS = "split.count", "split.no", "split.tensors.count"
_OWN = frozenset({_NUMBER})
"""Metadata that differ between parts of one model."""


def part_paths(path: Path) -> list[Path]:
    """Return the files of the model that `path` is a part of, as its name says; only itself if it says nothing."""
    named = _NAME.fullmatch(path.name)
    if named is None or not 1 <= int(named[2]) <= int(named[3]):
        return [path]
    ending = path.name[-len(".gguf") :]
    return [path.with_name(f"{named[1]}-{i + 1:05}-of-{named[3]}{ending}") for i in range(int(named[3]))]


def open_parts(path: Path) -> list[GgufContainer]:
    """Open the file, or all parts of its model in their order; raises `ModelLoadError` unless they are one model."""
    given = GgufContainer(path)
    count = _number(given, _COUNT, 1)
    if count == 1:
        return [given]
    if len(paths := part_paths(path)) != count:
        paths = part_paths(path := path.resolve())  # of a link, which may be called anything
    if len(paths) != count:
        raise ModelLoadError(
            f"{path} is one of {count} parts of a model (split.count); allowed is a name that says which: "
            f"NAME-00001-of-{count:05}.gguf"
        )
    if missing := [one.name for one in paths if not one.is_file()]:
        raise ModelLoadError(
            f"{path.parent} lacks {', '.join(missing[:8])}: {len(missing)} of {count} parts of a model"
        )
    parts = [given if one == path else GgufContainer(one) for one in paths]
    _check(parts)
    return parts


def _check(parts: Sequence[GgufContainer]) -> None:
    """Raise `ModelLoadError` unless each is the part that its name says, and all together have all tensors."""
    first = parts[0]
    total = _number(first, _TENSORS, sum(len(part.tensors) for part in parts))
    seen: dict[str, GgufContainer] = {}
    for i, part in enumerate(parts):
        found = (_number(part, _NUMBER, -1), _number(part, _COUNT, 1), _number(part, _TENSORS, total))
        if found != (i, len(parts), total):
            raise ModelLoadError(
                f"{part.path} says that it is part {found[0] + 1} of {found[1]}, of a model of {found[2]} tensors; "
                f"expected: part {i + 1} of {len(parts)}, of {total} tensors"
            )
        for key in part.metadata.keys() & first.metadata.keys():
            if key not in _OWN and part.metadata[key] != first.metadata[key]:
                raise ModelLoadError(f"{part.path} is a part of another model than {first.path.name}: {key} differs")
        for name in part.tensors:
            if name in seen:
                raise ModelLoadError(f"{part.path} and {seen[name].path.name} both have the tensor {name!r}")
            seen[name] = part
    if len(seen) != total:
        raise ModelLoadError(f"{first.path}: its {len(parts)} parts have {len(seen)} tensors; expected: {total}")


def _number(part: GgufContainer, key: str, default: int) -> int:
    value = part.metadata.get(key, default)
    if not isinstance(value, int):
        raise ModelLoadError(f"{part.path}: {key} is {value!r}; expected an integer")
    return value
