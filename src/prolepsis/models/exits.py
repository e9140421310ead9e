"""From a target to an early exit of it."""

from prolepsis.core.errors import ConfigError, ModelLoadError
from prolepsis.models.early_exit import VOCAB_STEP, EarlyExit
from prolepsis.models.lean import LeanModel
from prolepsis.models.lean_exit import LeanExit
from prolepsis.models.native import NativeModel
from prolepsis.models.native_exit import NativeExit
from prolepsis.models.protocol import TargetModel

DEFAULT_SHARE = 6
"""An exit knows the first sixth of its target's vocabulary.

Of the default model's text that is 85 %; a drafted token costs a third after one layer, 0.9 after 28 of 30.
"""


def make_exit(target: TargetModel, num_layers: int, vocab_size: int | None = None) -> EarlyExit:
    """Return an exit of `target` after `num_layers` layers that knows about `vocab_size` tokens.

    None: the default share. Raises `ConfigError` for a layer that is none of the target's but the last, and
    `ModelLoadError` for a forward that cannot stop early.
    """
    info = target.info
    if not 0 < num_layers < info.num_layers:
        raise ConfigError(
            f"early_exit_layer is {num_layers}; allowed for {info.name}: 1 to {info.num_layers - 1}",
            param="early_exit_layer",
        )
    asked = info.vocab_size // DEFAULT_SHARE if vocab_size is None else min(vocab_size, info.vocab_size)
    known = max(VOCAB_STEP, asked // VOCAB_STEP * VOCAB_STEP)
    if isinstance(target, NativeModel):
        return NativeExit(target, num_layers, known)
    if isinstance(target, LeanModel):
        return LeanExit(target, num_layers, known)
    raise ModelLoadError(f"the forward {info.forward} cannot stop early; allowed: native, lean")
