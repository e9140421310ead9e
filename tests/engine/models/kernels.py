"""The mark of tests that need the kernels, which skips them and says why where these cannot run, and their threads."""

from functools import cache

import pytest

from prolepsis.core.errors import ModelLoadError
from prolepsis.engine.native.decoder import pick_decoder
from prolepsis.engine.native.forward import Shape
from prolepsis.engine.native.library import Team


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
def team(threads: int) -> Team | None:
    """Return threads as a model on the native forward has them; None, which is the caller alone, without kernels."""
    if _REASON is not None:
        return None
    sizes = (64, 1, 1, 64, 64, 64)  # hidden, heads, KV heads, head, intermediate, vocabulary
    return pick_decoder().library.make(Shape(*sizes, 1e-5, 1.0, 1.0, 0.0), threads, int8=True).team
