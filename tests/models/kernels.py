"""Whether the kernels can be built and run here, for tests that need them."""

from prolepsis.core.errors import ModelLoadError
from prolepsis.native.decoder import pick_decoder


def why_not() -> str | None:
    """Say why the kernels cannot run here, or None."""
    try:
        pick_decoder()
    except ModelLoadError as error:
        return str(error)
    return None
