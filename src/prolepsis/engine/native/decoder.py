"""The compiled decoder, in the fastest build that this machine runs correctly, and its few-row product alone."""

import ctypes
from functools import lru_cache

import torch
from torch import Tensor

from prolepsis.core.errors import ModelLoadError
from prolepsis.engine.native.choice import ChosenKernel, choose, ways
from prolepsis.engine.native.forward import DecoderLibrary
from prolepsis.engine.native.library import address
from prolepsis.engine.native.processor import variants

_OPENMP = getattr(ctypes.CDLL(None), "GOMP_parallel", None)  # the runtime that torch brings, whichever it is
_PARALLEL = None if _OPENMP is None else ctypes.cast(_OPENMP, ctypes.c_void_p).value


class PackedLinear:
    """A matrix [N, K] and a bias [N] as the few-row product reads them, for forwards that are not ours."""

    def __init__(self, library: DecoderLibrary, weight: Tensor, bias: Tensor | None) -> None:
        """Pack a bfloat16 matrix into [N / 16, K / 2, 16, 2], both padded to 32; the bias is float32."""
        self._library = library
        self._rows, self._columns = weight.shape
        self._depth = -(-self._columns // 32) * 32
        self._packed = torch.zeros(-(-self._rows // 32) * 32, self._depth, dtype=torch.bfloat16)
        self._bias = bias
        whole = weight.contiguous()
        at = address(whole, torch.bfloat16, self._rows, self._columns)
        library.pack(at, self._rows, self._columns, self._packed.data_ptr())
        offsets = None if bias is None else address(bias, torch.float32, self._rows)
        self._places = self._depth, self._packed.data_ptr(), self._rows, offsets

    def product(self, x: Tensor) -> Tensor:
        """Return x [M, K] bfloat16 times the matrix, plus the bias: [M, N] float32.

        On torch's own threads, as its neighbours are: two teams that spin on the same cores starve each other.
        """
        count, out = len(x), torch.empty(len(x), self._rows)
        at = address(x, torch.bfloat16, count, self._columns)
        if self._columns < self._depth:
            padded = torch.nn.functional.pad(x, (0, self._depth - self._columns))
            at = padded.data_ptr()
        threads = torch.get_num_threads()
        self._library.linear(at, count, *self._places, out.data_ptr(), _PARALLEL, threads)
        return out


def fault(library: DecoderLibrary) -> str | None:
    """Compare the few-row product with torch's on a small case, before a kernel is trusted on a new processor."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20, 64, generator=generator).bfloat16()
    weight = torch.randn(48, 64, generator=generator).bfloat16()
    expected = x.float() @ weight.float().T
    got = PackedLinear(library, weight, None).product(x)
    return None if torch.allclose(got, expected, rtol=1e-4, atol=1e-3) else "it disagrees with torch on this processor"


@lru_cache(maxsize=1)
def pick_decoder() -> ChosenKernel[DecoderLibrary]:
    """Return the fastest decoder that runs correctly here; raises `ModelLoadError` with the reasons where none does."""
    try:
        return choose(variants(), ways(), DecoderLibrary, fault)
    except RuntimeError as error:
        raise ModelLoadError(str(error)) from error
