"""The mark of tests that need the kernels: it skips them where these cannot be built or run, and says why."""

import pytest

from prolepsis.core.errors import ModelLoadError
from prolepsis.native.decoder import pick_decoder


def _why_not() -> str | None:
    """Say why the kernels cannot run here, or None."""
    try:
        pick_decoder()
    except ModelLoadError as error:
        return str(error)
    return None


_REASON = _why_not()
NEEDS_KERNELS = pytest.mark.skipif(_REASON is not None, reason=f"no native forward here: {_REASON}")
