"""Where a model's files are: a folder as it is, or a GGUF file whose header has been read."""

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from prolepsis.core.errors import ModelLoadError
from prolepsis.core.extras import ENGINE

if TYPE_CHECKING:
    from prolepsis.engine.models.files.gguf_file import GgufFile

ModelSource: TypeAlias = "Path | GgufFile"  # a model's folder or GGUF file; an open file is not read again


def open_model(path: Path) -> ModelSource:
    """Return a GGUF file with its header read, which takes up to 90 ms, or the folder of a model as it is.

    Raises `ModelLoadError` with file and reason, `ConfigError` for a GGUF file without the packages that read it.
    """
    if path.is_dir():
        return path
    if not path.exists():
        raise ModelLoadError(f"{path} does not exist; expected a folder with config.json or a GGUF file")
    if not path.is_file():  # a pipe, say
        raise ModelLoadError(f"{path} is not a model; expected a folder with config.json or a GGUF file")
    ENGINE.require(f"{path}, a GGUF file,", "model")
    from prolepsis.engine.models.files.gguf_file import GgufFile

    return GgufFile(path)
