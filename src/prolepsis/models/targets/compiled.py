"""The lean forward with the dense parts of a layer compiled for a few row counts, in the background.

Attention stays uncompiled: its shapes change with every context. One graph serves all layers, as their shapes agree.
"""

import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from types import CodeType, FunctionType

import structlog
import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch import Tensor

from prolepsis.core.files import cache_directory
from prolepsis.models.files.weights import Checkpoint
from prolepsis.models.targets.lean import Dense, LeanModel, after_attention, before_attention
from prolepsis.models.targets.lean_shape import LeanLayer, LeanShape

log = structlog.get_logger(__name__)

BUCKETS = (1, 8, 32)


class CompiledLean(LeanModel):
    """A lean model on the CPU that gets faster as its buckets are compiled; a step never waits for one."""

    def __init__(self, checkpoint: Checkpoint, shape: LeanShape, name: str, buckets: Sequence[int] = BUCKETS) -> None:
        super().__init__(checkpoint, shape, name, torch.device("cpu"))
        self._info = replace(self._info, forward="lean (torch, compiled)")
        self._ready: dict[int, Dense] = {}
        self._pending = sorted(buckets)
        self.fault: str | None = None
        """Why compilation ended early, or None."""
        self._thread = threading.Thread(target=self._compile_all, name="compile", daemon=True)
        self._thread.start()

    def pending(self) -> tuple[int, ...]:
        """Row counts still being compiled; empty when the forward is as fast as it gets."""
        return tuple(self._pending)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until nothing is pending, at most `timeout` seconds; True if so."""
        self._thread.join(timeout)
        return not self._pending

    def dense(self, num_tokens: int) -> Dense:
        """Return the smallest ready bucket that holds `num_tokens` rows, padding to it; else the plain functions."""
        ready = [bucket for bucket in self._ready if bucket >= num_tokens]
        if not ready:
            return before_attention, after_attention
        bucket = min(ready)
        return self._ready[bucket] if bucket == num_tokens else padded(self._ready[bucket], bucket - num_tokens)

    def _compile_all(self) -> None:
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_directory() / "inductor"))
        if sys.platform == "linux":  # there it applies to this thread only: requests go first
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        for bucket in list(self._pending):
            try:
                self._ready[bucket] = self._compile(bucket)
            except Exception as error:  # a compiler that fails costs speed, never a request
                self.fault = f"compiling for {bucket} rows failed: {error}"
                log.warning("compile_failed", rows=bucket, error=str(error))
                self._pending.clear()
                return
            self._pending.remove(bucket)

    @torch.no_grad()
    def _compile(self, bucket: int) -> Dense:
        before = torch.compile(_own_code(before_attention, bucket), dynamic=False, fullgraph=True)
        after = torch.compile(_own_code(after_attention, bucket), dynamic=False, fullgraph=True)
        x = torch.zeros(bucket, self.shape.hidden, dtype=self.dtype)
        rotary = self.rotary(torch.zeros(bucket, dtype=torch.int32))
        q, _, _ = before(x, self.layers[0], rotary, self.shape)
        after(x, torch.zeros_like(q), self.layers[0], self.shape)
        return before, after


def padded(dense: Dense, missing: int) -> Dense:
    """Wrap a compiled pair so that it takes `missing` rows fewer than it was compiled for."""
    wide_before, wide_after = dense

    def before(x: Tensor, layer: LeanLayer, rotary: Tensor, shape: LeanShape) -> tuple[Tensor, Tensor, Tensor]:
        rows = len(x)
        wide = wide_before(F.pad(x, (0, 0, 0, missing)), layer, F.pad(rotary, (0, 0, 0, 0, 0, missing)), shape)
        return wide[0][:rows], wide[1][:rows], wide[2][:rows]

    def after(x: Tensor, mixed: Tensor, layer: LeanLayer, shape: LeanShape) -> Tensor:
        wide = F.pad(x, (0, 0, 0, missing)), F.pad(mixed, (0, 0, 0, 0, 0, missing))
        return wide_after(*wide, layer, shape)[: len(x)]

    return before, after


def _own_code(function: object, bucket: int) -> FunctionType:
    """Copy a function with a code object of its own: the compiler keeps its graphs by code object.

    So a bucket being compiled never touches the graphs of one in use.
    """
    assert isinstance(function, FunctionType)
    code: CodeType = function.__code__.replace(co_name=f"{function.__name__}_{bucket}")
    return FunctionType(code, function.__globals__, code.co_name, function.__defaults__, function.__closure__)
