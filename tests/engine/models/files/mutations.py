"""Breaks small models in random ways, and says which of them neither load nor are refused as they should be.

`python -m tests.engine.models.files.mutations MINUTES [SEED]` looks for such files and prints the seed of each; a seed
breaks the same file in the same way each time.
"""

import json
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from prolepsis.core.config import EngineConfig
from prolepsis.core.errors import InvalidParameter, MemoryPlanError, ModelLoadError
from prolepsis.engine.models.load import load_model
from tests.engine.models.files.gguf_files import write_gguf, write_parts
from tests.engine.models.tiny import one, run, save_tiny
from tests.engine.text.test_tokenizer import CHAT, byte_level

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 7, 255, 2**31 - 1, 2**32 - 1, 2**63 - 1, 0.0, -1.5, 1e-300, 1e300),
    *(float("nan"), float("inf"), "", "x", "\ud7ff\u0000", "{{", "{% for", "llama", [], [0], ["a"], [[]], {}, {"a": 1}),
)
NUMBERS = (0, 1, 2, 3, 4, 5, 8, 9, 31, 127, 255, 2**16, 2**31, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1)
SECONDS = 20
"""A file that takes longer to load hangs."""


def make_seeds(folder: Path) -> list[Path]:
    """Write the whole models that are broken: GGUF of several families, one in parts, and folders."""
    sizes: dict[str, object] = {"vocab_size": 272}
    llama = save_tiny(folder / "llama", "llama", sizes)
    write_gguf(folder / "llama.gguf", llama, "llama")
    gemma = save_tiny(folder / "gemma3", "gemma3_text", {**sizes, "sliding_window": 9, "query_pre_attn_scalar": 16})
    write_gguf(folder / "gemma3.gguf", gemma, "gemma3")
    parts = folder / "parts"
    parts.mkdir()
    write_parts(parts, llama)
    sharded = Path(shutil.copytree(folder / "llama", folder / "sharded"))
    tensors = load_file(sharded / "model.safetensors")
    weight_map = {name: f"{'ab'[i % 2]}.safetensors" for i, name in enumerate(sorted(tensors))}
    for shard in sorted(set(weight_map.values())):
        save_file({name: tensors[name] for name, home in weight_map.items() if home == shard}, sharded / shard)
    (sharded / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (sharded / "model.safetensors").unlink()
    folders = [folder / "llama", folder / "gemma3", sharded]
    for one_folder in folders:
        byte_level().save_pretrained(one_folder)
        (one_folder / "generation_config.json").write_text('{"eos_token_id": [1], "temperature": 0.7, "top_k": 20}')
    return [folder / "llama.gguf", folder / "gemma3.gguf", parts, *folders]


def broken(seeds: list[Path], seed: int, to: Path) -> Path:
    """Write a copy of one of `seeds` to `to`, broken in one to three ways; return the path that names the model."""
    random_ = random.Random(seed)
    source = random_.choice(seeds)
    if source.is_dir():
        shutil.copytree(source, to)
    else:
        to.mkdir()
        shutil.copy(source, to)
    for _ in range(random_.randint(1, 3)):
        files = sorted(file for file in to.rglob("*") if file.is_file())
        if files:
            _break(random_.choice(files), random_)
    named = sorted(to.glob("*.gguf"))
    return named[0] if source.suffix == ".gguf" or source.name == "parts" else to


def _break(file: Path, random_: random.Random) -> None:
    if random_.random() < 0.03:
        file.write_bytes(b"")
    elif file.suffix == ".json" and random_.random() < 0.8 and (value := _json(file.read_bytes())) is not None:
        file.write_text(json.dumps(_broken_json(value, random_)))
    elif file.suffix == ".safetensors" and random_.random() < 0.7:
        _break_header(file, random_)
    else:
        file.write_bytes(_broken_bytes(bytearray(file.read_bytes()), random_))


def _json(data: bytes) -> Any:
    """Return the value, None if it was broken before."""
    try:
        return json.loads(data)
    except ValueError:
        return None


def _break_header(file: Path, random_: random.Random) -> None:
    data = file.read_bytes()
    end = 8 + struct.unpack("<Q", data[:8])[0] if len(data) >= 8 else 0
    if (value := _json(data[8:end])) is None:
        return
    header = json.dumps(_broken_json(value, random_)).encode()
    file.write_bytes(struct.pack("<Q", len(header)) + header + data[end:])


def _broken_json(value: Any, random_: random.Random) -> Any:
    """Return the value with one of its parts, however deep, replaced, removed or twice there."""
    if not isinstance(value, dict | list) or not value or random_.random() < 0.1:
        return random_.choice(ODD)
    key = random_.choice(list(value) if isinstance(value, dict) else range(len(value)))
    act = random_.random()
    if act < 0.15:
        del value[key]
    elif act < 0.25 and isinstance(value, list):
        value.append(value[key])
    elif act < 0.25 and isinstance(value, dict):
        value[f"{key}x"] = value[key]
    else:
        value[key] = _broken_json(value[key], random_)
    return value


def _broken_bytes(data: bytearray, random_: random.Random) -> bytes:
    """Return the bytes with one place changed; most places are in the first part, where headers lie."""
    if not data:
        return bytes(data)
    at = random_.randrange(min(len(data), 20000) if random_.random() < 0.9 else len(data))
    act = random_.random()
    if act < 0.1:
        return bytes(data[:at])
    if act < 0.2:
        del data[at : at + random_.randint(1, 16)]
    elif act < 0.3:
        data[at:at] = random_.randbytes(random_.randint(1, 16))
    elif act < 0.6:
        data[at] = random_.randrange(256)
    else:
        form = random_.choice(["<I", "<Q"])
        number = random_.choice(NUMBERS) & (2 ** (8 * struct.calcsize(form)) - 1)
        data[at : at + struct.calcsize(form)] = struct.pack(form, number)
    return bytes(data)


def fault_of(path: Path, *, is_whole: bool = False) -> str | None:
    """Load the model, compute with it and write a prompt; return the trace of what is no refusal.

    `is_whole`: a refusal is a fault too.
    """
    try:
        loaded = load_model(EngineConfig.model_validate({"model": str(path), "device": "cpu"}))
        run(loaded.model, loaded.model.make_cache(1), one([1, 2], 0, [0]))
        loaded.tokenizer.decode(loaded.tokenizer.encode("hello w\u00f6rld <s> 12"))
        loaded.tokenizer.apply_chat_template(CHAT)
    except (ModelLoadError, MemoryPlanError, InvalidParameter):
        return traceback.format_exc() if is_whole else None
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # what is looked for; a panic of Rust is no Exception
        return traceback.format_exc()
    return None


def _alarm(number: int, frame: object) -> None:
    raise TimeoutError(f"it takes longer than {SECONDS} s")


def main(minutes: float, seed: int, say: Callable[[str], None] = print) -> int:
    """Break models for so long from `seed` on; return the number of faults."""
    limit = 6 << 30
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    signal.signal(signal.SIGALRM, _alarm)
    until, faults = time.monotonic() + 60 * minutes, 0
    with tempfile.TemporaryDirectory() as folder:
        seeds = make_seeds(Path(folder))
        first = seed
        while time.monotonic() < until:
            to = Path(folder) / f"case{seed}"
            signal.alarm(SECONDS)
            if (fault := fault_of(broken(seeds, seed, to))) is not None:
                faults += 1
                say(f"seed {seed}: {fault}")
            signal.alarm(0)
            shutil.rmtree(to)
            seed += 1
    say(f"{seed - first} files, {faults} faults")
    return faults


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0) > 0)
