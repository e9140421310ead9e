"""How many bytes of weights a pass reads, as the files store them."""

import json
import struct
from pathlib import Path

from prolepsis.core.errors import ModelLoadError

EMBEDDINGS = ("token_embd.weight", "model.embed_tokens.weight")
OUTPUTS = ("output.weight", "lm_head.weight")


def bytes_per_pass(path: Path) -> int:
    """Return the bytes of the weights that a pass of the model at `path` reads, whatever the number of its rows.

    All of them, but of an embedding that is not the output head too only the rows of its tokens, which do not count.
    Experts of a mixture are counted as if all were read. Raises `ModelLoadError` for files that cannot be read.
    """
    sizes = _of_gguf(path) if path.is_file() else _of_folder(path)
    skipped = EMBEDDINGS if any(name in sizes for name in OUTPUTS) else ()
    return sum(size for name, size in sizes.items() if name not in skipped)


def _of_gguf(path: Path) -> dict[str, int]:
    from prolepsis.models.files.gguf import GgufFile

    return {name: tensor.size for name, tensor in GgufFile(path).tensors.items()}


def _of_folder(folder: Path) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for file in sorted(folder.glob("*.safetensors")):
        sizes |= _of_safetensors(file)
    if not sizes:
        raise ModelLoadError(f"{folder} has no safetensors files")
    return sizes


def _of_safetensors(file: Path) -> dict[str, int]:
    """Read the header: its length in 8 bytes, then JSON with the first and last byte of each tensor."""
    try:
        with file.open("rb") as data:
            (length,) = struct.unpack("<Q", data.read(8))
            header = json.loads(data.read(length))
        places = {name: entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"}
        return {name: int(end) - int(start) for name, (start, end) in places.items()}
    except (OSError, struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelLoadError(f"{file} is not a whole safetensors file: {error!r}") from error
