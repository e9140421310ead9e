"""A description of a model's files from their headers alone."""

import math
import re
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from prolepsis.core.errors import ModelLoadError
from prolepsis.core.model_files import ModelFiles
from prolepsis.engine.models.files.generation_config import json_object
from prolepsis.engine.models.files.safetensors_files import weight_files
from prolepsis.engine.models.files.weight_bytes import weights_by_format

if TYPE_CHECKING:
    from prolepsis.engine.models.files.source import ModelSource


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
