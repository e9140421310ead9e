"""The models that figures are measured on, by name, and the file of each.

Usage: python -m benchmarks.yardsticks coder|twin-0.5b|twin-1b|twin-3b
       prolepsis bench --model "$(python -m benchmarks.yardsticks twin-1b)"

`coder` is the file that PROLEPSIS_TEST_CODER_MODEL names (Qwen2.5-Coder 1.5B Instruct, Q4_K_M). A twin gives the
answers of the default model at the cost of a larger one: its feed-forward is wider, and what is added is multiplied by
zeros. It is made from the default model at the first use, and kept in the cache (5 bits a weight: 0.3, 0.6 and 1.9 GB).
"""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from prolepsis.core.config import DEFAULT_MODEL
from prolepsis.core.errors import ConfigError
from prolepsis.core.files import cache_directory
from prolepsis.engine.models.files.store import resolve

CODER = "coder"
CODER_FILE = "PROLEPSIS_TEST_CODER_MODEL"
TWINS = {"twin-0.5b": 8_704, "twin-1b": 18_432, "twin-3b": 56_832}
"""Width of the feed-forward of each: 0.51, 1.01 and 3.0 billion weights with the default model's 30 layers."""
NAMES = (CODER, *TWINS)
_SIZES = {"twin-0.5b": "0.5-billion", "twin-1b": "1-billion", "twin-3b": "3-billion"}
_WIDENED = ("ffn_gate.weight", "ffn_up.weight")


def label(model: str) -> str:
    """Return what a table calls a model, by the name that its engine gives it: a twin is not the model it costs."""
    twin = next((name for name in TWINS if model.endswith(name)), None)
    return f"answers of SmolLM2-135M at the cost of a {_SIZES[twin]} model" if twin else model


def file_of(name: str) -> Path:
    """Return the file of a yardstick, which is made if it is a twin; raises `ConfigError`."""
    if name == CODER:
        if not (given := os.environ.get(CODER_FILE)):
            raise ConfigError(f"{CODER_FILE} names no file of the coder model", param="model")
        return Path(given)
    if name not in TWINS:
        raise ConfigError(f"yardstick {name!r} is unknown; allowed: {', '.join(NAMES)}", param="model")
    out = cache_directory() / "yardsticks" / f"smollm2-135m-{name}.gguf"
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        unfinished = out.with_suffix(".part")
        write_twin(resolve(DEFAULT_MODEL), unfinished, TWINS[name], out.stem)
        unfinished.replace(out)
    return out


def write_twin(source: Path, out: Path, width: int, name: str, seed: int = 7) -> None:
    """Write the model of `source` with a feed-forward of `width`, a multiple of 256: the same function, at more cost.

    `name` is that of the twin.

    Rows that are added are rows of all layers in random order, so that their values are like real ones.
    """
    reader, draw = gguf.GGUFReader(source), np.random.default_rng(seed)
    architecture = _field(reader, "general.architecture")
    key = f"{architecture}.feed_forward_length"
    more = width - _field(reader, key)
    if more <= 0 or width % 256:
        raise ConfigError(f"width is {width}; allowed: multiples of 256 above {_field(reader, key)}", param="width")
    writer = gguf.GGUFWriter(out, architecture)
    for field in _metadata(reader):
        kind, inner = field.types[0], field.types[-1] if len(field.types) > 1 else None
        value = {key: width, "general.name": name}.get(field.name) or field.contents()
        writer.add_key_value(field.name, value, kind, sub_type=inner)
    pools = {end: [one for one in reader.tensors if one.name.endswith(end)] for end in _WIDENED}
    for tensor in reader.tensors:
        data = np.asarray(tensor.data)
        if (end := next((end for end in _WIDENED if tensor.name.endswith(end)), None)) is not None:
            data = np.concatenate([data, *_rows(pools[end], tensor.tensor_type, more, draw)])
        elif tensor.name.endswith("ffn_down.weight"):
            data = np.concatenate([data, _zeros(data, tensor.tensor_type, more)], 1)
        writer.add_tensor(tensor.name, np.ascontiguousarray(data), raw_shape=data.shape, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _field(reader: gguf.GGUFReader, name: str) -> Any:
    field = reader.get_field(name)
    if field is None:
        raise ConfigError(f"the model file has no {name}", param="model")
    return field.contents()


def _metadata(reader: gguf.GGUFReader) -> Iterator[gguf.ReaderField]:
    """Yield the fields of the file, without those that a writer adds itself."""
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            yield field


def _rows(
    pool: list[gguf.ReaderTensor], kind: gguf.GGMLQuantizationType, number: int, draw: np.random.Generator
) -> Iterator[NDArray[Any]]:
    """Yield so many rows of the tensors of one format."""
    same = [np.asarray(one.data) for one in pool if one.tensor_type == kind]
    while number:
        rows = same[draw.integers(len(same))]
        taken = rows[draw.permutation(len(rows))[:number]]
        number -= len(taken)
        yield taken


def _zeros(data: NDArray[Any], kind: gguf.GGMLQuantizationType, number: int) -> NDArray[Any]:
    """Return columns of zeros: blocks whose scale and minimum are zero bytes."""
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    width = number if data.dtype != np.uint8 else number // int(block) * int(block_bytes)
    return np.zeros((len(data), width), data.dtype)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=NAMES)
    print(file_of(parser.parse_args().name))


if __name__ == "__main__":
    main()
