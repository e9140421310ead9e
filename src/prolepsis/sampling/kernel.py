"""The compiled sampling kernel, or None where nothing can be compiled."""

import functools
from types import ModuleType

import structlog

from prolepsis.native import build

log = structlog.get_logger(__name__)


@functools.cache
def native_kernel() -> ModuleType | None:
    """Return `native/sampling.cpp`, built and loaded once for the process; None, and a warning, where that fails.

    It offers `Row(address, wide, temperature, top_k, top_p, min_p, key)`, `pick(rows, vocab, threads)`,
    `probabilities(row, vocab, target)`, `gumbel(key, tokens, size, target)` and `argmax(address, stride, vocab, rows)`,
    all over addresses of contiguous rows; `key` is that of one position (`noise.position_key`).
    """
    if (missing := build.compiler_missing()) is not None:
        log.warning("sampling_kernel_missing", reason=missing)
        return None
    try:
        return build.load_extension("sampling", ("sampling.cpp",), ("-ffp-contract=off",))
    except (OSError, RuntimeError, ImportError) as error:
        log.warning("sampling_kernel_missing", reason=str(error))
        return None
