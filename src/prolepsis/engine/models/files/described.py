"""What a model's files say of it by their headers alone: a description, and the bytes of its weights."""

import math
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prolepsis.core.errors import ModelLoadError
from prolepsis.core.model_files import ModelFiles
from prolepsis.engine.models.files.generation_config import json_object
from prolepsis.engine.models.files.safetensors_files import header, weight_files

if TYPE_CHECKING:
    from prolepsis.engine.models.files.source import ModelSource

EMBEDDINGS = ("token_embd.weight", "model.embed_tokens.weight")
OUTPUTS = ("output.weight", "lm_head.weight")
BYTES_OF = {"f32": 4.0, "bf16": 2.0, "q8": 34 / 32, "q4": 20 / 32}
"""Bytes of one weight, by the setting `weights`."""


def described(source: "ModelSource", digest: str = "") -> ModelFiles:
    """Return what the files of a model say of it; `digest`: identity of its weights, where it is known."""
    weights, files, facts = Counter[str](), list[Path](), dict[str, str | int | float]()
    with suppress(ModelLoadError):  # a folder with a tokenizer and no weights, for an upstream engine
        weights = weights_by_format(source)
        files = weight_files(source) if isinstance(source, Path) else source.files
    if isinstance(source, Path):
        stated = str(json_object(source / "config.json").get("model_type", "unknown"))
        kind, architecture = "safetensors", stated.removesuffix("_text").replace("_", "")
    else:
        kind, architecture = "gguf", source.text("general.architecture", "unknown")
        facts = {
            key: value
            for key, value in source.metadata.items()
            if key.startswith(("general.", f"{architecture}."))
            and (isinstance(value, str) or (not isinstance(value, list) and math.isfinite(value)))
        }
    number, stats = weights.total(), [file.stat() for file in files]
    short = f"{number / 1e9:.1f}B" if number >= 1e9 else f"{number / 1e6:.0f}M" if number else ""
    most = max(weights, key=weights.__getitem__, default="")
    return ModelFiles(
        format=kind if files else "",
        architecture=architecture,
        parameter_size=str(facts.get("general.size_label") or short),
        quantization=_file_type(facts.get("general.file_type")) or most,
        num_bytes=sum(stat.st_size for stat in stats),
        modified=max((stat.st_mtime for stat in stats), default=0.0),
        facts={**facts, "general.parameter_count": number},
        digest=digest,
    )


def _file_type(stated: float | str | None) -> str:
    """Return the name of the format that a GGUF file says it has, such as Q4_K_M; empty for one that is not known."""
    if stated is None:
        return ""
    from gguf.constants import LlamaFileType

    return next((re.sub("^(MOSTLY|ALL)_", "", kind.name) for kind in LlamaFileType if kind == stated), "")


@dataclass(frozen=True, slots=True)
class _StoredSize:
    """A tensor in a file."""

    num_bytes: int
    num_weights: int
    format: str  # Q4_1, BF16


def bytes_per_pass(path: Path) -> int:
    """Return the bytes of the weights that a pass of the model at `path` reads, for any number of rows.

    All of them, but of an embedding that is not the output head too only the rows of its tokens, which do not count.
    Experts of a mixture are counted as if all were read. Raises `ModelLoadError` for files that cannot be read.
    """
    tensors = _tensors(path)
    skipped = EMBEDDINGS if any(name in tensors for name in OUTPUTS) else ()
    return sum(tensor.num_bytes for name, tensor in tensors.items() if name not in skipped)


def least_loaded_bytes(source: "ModelSource", weights: str) -> int:
    """Return the least memory that the weights of a model take under the setting `weights`.

    A forward that cannot keep quantised weights takes more. Raises `ModelLoadError` for files that cannot be read.
    """
    tensors = _tensors(source).values()
    if weights in BYTES_OF:
        return math.ceil(BYTES_OF[weights] * sum(tensor.num_weights for tensor in tensors))
    return sum(min(tensor.num_bytes, 2 * tensor.num_weights) for tensor in tensors)


def weights_by_format(source: "ModelSource") -> Counter[str]:
    """Return the number of weights in each format; raises `ModelLoadError` for files that cannot be read."""
    weights = Counter[str]()
    for tensor in _tensors(source).values():
        weights[tensor.format] += tensor.num_weights
    return weights


def _tensors(source: "ModelSource") -> dict[str, _StoredSize]:
    if isinstance(source, Path) and not source.is_file():
        return {name: _stored(entry) for file in weight_files(source) for name, entry in header(file).items()}
    from gguf.constants import GGMLQuantizationType

    from prolepsis.engine.models.files.gguf_file import GgufFile

    file = GgufFile(source) if isinstance(source, Path) else source
    return {
        name: _StoredSize(tensor.size, math.prod(tensor.shape), GGMLQuantizationType(tensor.kind).name)
        for name, tensor in file.tensors.items()
    }


def _stored(entry: Mapping[str, Any]) -> _StoredSize:
    start, end = entry["data_offsets"]
    return _StoredSize(end - start, math.prod(entry["shape"]), str(entry.get("dtype", "")))
