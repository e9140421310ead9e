"""The safetensors files of a model folder: one, or shards with an index that says which tensor lies where.

Source of the names: transformers, which prefers the one file where a folder has both.
"""

import json
import struct
from pathlib import Path
from typing import Any

from prolepsis.core.errors import ModelLoadError
from prolepsis.engine.models.files.generation_config import json_object

INDEX = "model.safetensors.index.json"
WEIGHTS = "model.safetensors"
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_MAX_HEADER = 100_000_000  # bytes of the header of a file; safetensors' own limit


def weight_files(folder: Path) -> list[Path]:
    """Return the files of weights; raises `ModelLoadError` for shards that are missing, or no index."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    shards = sorted(set(_index(folder).values()))
    if missing := [shard for shard in shards if not (folder / shard).is_file()]:
        raise ModelLoadError(f"{folder} lacks {', '.join(missing)}, named in {INDEX}")
    return [folder / shard for shard in shards]


def homes(folder: Path) -> dict[str, Path]:
    """Return the file of each tensor.

    Raises `ModelLoadError` as `weight_files` does, and for shards whose tensors are not those of the index: one that is
    missing, one in two shards, one that the index does not name.
    """
    by_name: dict[str, Path] = {}
    for file in weight_files(folder):
        for name in header(file):
            if name in by_name:
                raise ModelLoadError(f"{folder}: {by_name[name].name} and {file.name} both have the tensor {name!r}")
            by_name[name] = file
    if (folder / WEIGHTS).is_file():
        return by_name
    index = _index(folder)
    for name, shard in index.items():
        if name not in by_name or by_name[name].name != shard:
            raise ModelLoadError(f"{folder / shard} has no tensor {name!r}, which {INDEX} says it has")
    if leftover := sorted(by_name.keys() - index.keys()):
        file = by_name[leftover[0]]
        raise ModelLoadError(f"{file} has {len(leftover)} tensors that {INDEX} does not name, first {leftover[0]!r}")
    return by_name


def _index(folder: Path) -> dict[str, str]:
    """Return the shard of each tensor."""
    if not (folder / INDEX).is_file():
        if pickled := [name for name in _PICKLED if (folder / name).exists()]:
            raise ModelLoadError(f"{folder} has its weights as {pickled[0]}, which is not read; allowed: safetensors")
        raise ModelLoadError(f"{folder} has neither {WEIGHTS} nor {INDEX}")
    named = json_object(folder / INDEX).get("weight_map")
    if not isinstance(named, dict) or not named:
        raise ModelLoadError(f"{folder / INDEX} is not a safetensors index: it has no weight_map")
    for name, shard in named.items():
        if not isinstance(shard, str) or Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise ModelLoadError(
                f"{folder / INDEX}: the tensor {name!r} is in {shard!r}; expected: a .safetensors file of the folder"
            )
    return named


def header(file: Path) -> dict[str, dict[str, Any]]:
    """Return dtype, shape and place of each tensor: JSON behind its length in 8 bytes; raises `ModelLoadError`."""
    try:
        with file.open("rb") as data:
            (length,) = struct.unpack("<Q", data.read(8))
            if length > _MAX_HEADER:
                raise ValueError(f"a header of {length} bytes")
            entries = json.loads(data.read(length))
        return {str(name): _entry(entry) for name, entry in entries.items() if name != "__metadata__"}
    except (OSError, struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelLoadError(f"{file} is not a whole safetensors file: {error!r}") from error


def _entry(entry: dict[str, Any]) -> dict[str, Any]:
    start, end = entry["data_offsets"]
    whole = all(isinstance(number, int) and number >= 0 for number in (start, end, *entry["shape"]))
    if not whole or start > end:
        raise ValueError(f"a tensor of shape {entry['shape']} from {start} to {end}")
    return entry
