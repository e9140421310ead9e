"""The identity of weights: a digest of all that a model computes with, and of no name of a file.

Of a GGUF file these are its tensors and the keys of its architecture; its other keys name it, or are the tokenizer's.
Of a folder they are its tensors and config.json without names and versions.
"""

import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from mmap import ACCESS_READ, mmap
from pathlib import Path

import structlog

from prolepsis.core.files import cache_directory, read_cached, stamp, write_cached
from prolepsis.core.json_value import digest_of
from prolepsis.core.phases import phase
from prolepsis.engine.models.files.generation_config import json_object
from prolepsis.engine.models.files.safetensors_files import header, weight_files
from prolepsis.engine.models.files.source import ModelSource, open_model

log = structlog.get_logger(__name__)

_SILENT = re.compile(r"_.*|.*_version|use_cache|prolepsis")
"""Keys of config.json that say where a model is from."""
_FORM = 1
"""Of the digest: where its making changes, so do the identities that heads record, and results kept are of no use."""
_SLOW_S = 1.0  # reading that takes longer is logged
_SETTLED_S = 2.0
"""A file that was written less than this ago may be written again without another time: its digest is not kept."""


def weights_identity(model: ModelSource) -> str:
    """Return the identity of a model's weights, 64 hexadecimal digits.

    All files are read once, at about a second a gigabyte; the result is kept by their inodes, sizes and times. Raises
    `ModelLoadError` for files that cannot be read.
    """
    source = open_model(model) if isinstance(model, Path) else model
    files = [*weight_files(source), source / "config.json"] if isinstance(source, Path) else source.files
    stamps = [stamp(file) for file in files]  # before they are read
    kept = cache_directory() / "identities" / digest_of([_FORM, *stamps])[:32]
    known, began = read_cached(kept), time.monotonic()
    if known is not None and re.fullmatch("[0-9a-f]{64}", known):
        return known
    if isinstance(source, Path):
        stated, tensors = json_object(source / "config.json"), _folder_tensors(source)
        computing = {key for key in stated if not _SILENT.fullmatch(key)}
    else:
        stated, raw = source.metadata, source.raw
        computing = {key for key in stated if key.startswith(f"{source.text('general.architecture')}.")}
        tensors = ((str((name, tensor.kind, tensor.shape)), raw(name).data) for name, tensor in source.tensors.items())
    lines, num_bytes = list[str](), sum(file.stat().st_size for file in files)
    with phase("identifying weights", num_bytes, in_bytes=True) as hashing, ThreadPoolExecutor(4) as readers:
        for line, length in readers.map(_hashed, tensors):  # hashing lets go of the interpreter
            lines.append(line)
            hashing.done += length
    lines.sort()
    digest = digest_of([json.dumps({key: stated[key] for key in computing}, sort_keys=True), lines])
    if (seconds := time.monotonic() - began) > _SLOW_S:
        log.info("weights_identified", files=len(files), seconds=round(seconds, 1), weights=digest[:16])
    if time.time() - max(state[0] for state in stamps if state) / 1e9 > _SETTLED_S:
        write_cached(kept, digest)
    return digest


def _hashed(tensor: tuple[str, memoryview]) -> tuple[str, int]:
    """Return a tensor's line, and its bytes."""
    return f"{tensor[0]} {sha256(tensor[1]).hexdigest()}", tensor[1].nbytes


def _folder_tensors(folder: Path) -> Iterator[tuple[str, memoryview]]:
    for file in weight_files(folder):
        entries = header(file)
        with file.open("rb") as opened:
            data = memoryview(mmap(opened.fileno(), 0, access=ACCESS_READ))
        for name, entry in entries.items():
            first, end = (8 + int.from_bytes(data[:8], "little") + offset for offset in entry["data_offsets"])
            yield str((name, entry["dtype"], entry["shape"])), data[first:end]
