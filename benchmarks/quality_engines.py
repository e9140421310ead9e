"""What quality.py compares: functions from the ids of a text to its logits, [T, vocab] float32, one for each engine."""

import json
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from benchmarks.peers.process import LOOP
from prolepsis.core.errors import ConfigError, EngineError
from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.engine.models.files.stored import quantised
from prolepsis.engine.models.files.weights import open_checkpoint
from prolepsis.engine.models.load import QUANTISED
from prolepsis.engine.models.protocol import SequenceInput, TargetModel, pack
from prolepsis.engine.models.targets.lean import LeanModel
from prolepsis.engine.models.targets.lean_shape import LeanShape
from prolepsis.engine.models.targets.native import NativeModel

PEERS: Final = {"llama.cpp": "llamacpp_logits", "openvino": "openvino_logits"}
"""Peers by name, and the script of each in peers/scripts."""

Engine = Callable[[list[int]], Tensor]


class Float32:
    """The reference: the readable forward in float32, on the values of the file."""

    def __init__(self, path: Path) -> None:
        checkpoint = open_checkpoint(path, torch.float32)
        shape = LeanShape.from_config(checkpoint.config)
        self.model = LeanModel(checkpoint, shape, path.name, torch.device("cpu"))

    def __call__(self, token_ids: list[int]) -> Tensor:
        return logits_of(self.model, token_ids)


def logits_of(model: TargetModel, token_ids: list[int]) -> Tensor:
    """Return the logits of every token, computed in one pass."""
    pages = list(range(-(-len(token_ids) // PAGE_SIZE)))
    batch = pack([SequenceInput(token_ids, 0, pages, keep_last=len(token_ids))])
    with torch.no_grad():
        return model.forward(batch, model.make_cache(len(pages)))


class Native:
    """The native forward: the file as it is (`weights` auto), or its values in bf16 quantised anew (q8, q4)."""

    def __init__(self, path: Path, weights: str, *, int8: bool, threads: int) -> None:
        checkpoint = open_checkpoint(path)
        if weights != "auto":
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "quantised.safetensors"
                checkpoint = replace(checkpoint, stored=dict(quantised(checkpoint.tensors, QUANTISED[weights], file)))
        shape = LeanShape.from_config(checkpoint.config)
        self.model = NativeModel(checkpoint, shape, path.name, threads, int8_activations=int8)

    def __call__(self, token_ids: list[int]) -> Tensor:
        return logits_of(self.model, token_ids)


@dataclass(slots=True)
class PeerEngine:
    """Another engine, in a process of its own."""

    kind: str
    python: Path
    model: Path
    max_tokens: int
    threads: int
    versions: dict[str, str] = field(default_factory=dict)
    _process: "subprocess.Popen[str]" = field(init=False)
    _folder: "tempfile.TemporaryDirectory[str]" = field(default_factory=tempfile.TemporaryDirectory)

    def __post_init__(self) -> None:
        command = [str(self.python), str(LOOP), PEERS[self.kind]]
        self._process = subprocess.Popen(  # noqa: S603  the caller names the Python
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        request = {"op": "load", "model": str(self.model), "threads": self.threads, "max_tokens": self.max_tokens}
        self.versions = self._call(request)["versions"]

    def __call__(self, token_ids: list[int]) -> Tensor:
        out = Path(self._folder.name) / "logits.npy"
        self._call({"op": "run", "token_ids": token_ids, "out": str(out)})
        return torch.from_numpy(np.load(out))

    def _call(self, request: dict[str, object]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline() or '{"error": "it ended"}')
        if "error" in answer:
            raise EngineError(f"peer {self.kind}: {answer['error']}")
        return answer


NATIVE: Final = {
    "native int8": ("auto", True),
    "native bf16": ("auto", False),
    "native q8 int8": ("q8", True),
    "native q8 bf16": ("q8", False),
    "native q4 int8": ("q4", True),
    "native q4 bf16": ("q4", False),
}
"""Name, then setting `weights`, and whether rows are in 8 bits."""


def open_engine(name: str, path: Path, pythons: dict[str, Path], *, max_tokens: int, threads: int) -> Engine:
    """Return the engine called `name` on the model file `path`; raises `ConfigError` for an unknown one."""
    if name in NATIVE:
        weights, int8 = NATIVE[name]
        return Native(path, weights, int8=int8, threads=threads)
    if name in PEERS:
        if name not in pythons:
            raise ConfigError(f"peer {name} needs a Python with its packages: --python {name}=PATH", param="python")
        return PeerEngine(name, pythons[name].absolute(), path.absolute(), max_tokens, threads)
    raise ConfigError(f"engine {name!r} is unknown; allowed: {', '.join(all_engines())}", param="engines")


def all_engines() -> Sequence[str]:
    """Return the names of all engines."""
    return [*NATIVE, *PEERS]
