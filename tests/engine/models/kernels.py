"""The mark of tests that need the kernels, which skips them and says why where these cannot run, and their threads."""

from functools import cache

import pytest

from prolepsis.core.errors import ModelLoadError
from prolepsis.engine.native.decoder import pick_decoder


def _why_not() -> str | None:
    """Say why the kernels cannot run here, or None."""
    try:
        pick_decoder()
    except ModelLoadError as error:
        return str(error)
    return None


_REASON = _why_not()
NEEDS_KERNELS = pytest.mark.skipif(_REASON is not None, reason=f"no native forward here: {_REASON}")


@cache
def team(threads: int) -> object:
    """Return threads as a model on the native forward has them; None, which is the caller alone, without kernels."""
    if _REASON is not None:
        return None
    module = pick_decoder().library
    sizes = (64, 1, 1, 64, 64, 64)  # hidden, heads, KV heads, head, intermediate, vocabulary
    made: object = module.Decoder(module.Shape(*sizes, 1e-5, 1.0, 1.0, 0.0), threads, True).team
    return made
