"""From a target to an early exit of it."""

from prolepsis.core.errors import ConfigError, ModelLoadError
from prolepsis.models.early_exit import VOCAB_STEP, EarlyExit
from prolepsis.models.lean import LeanModel
from prolepsis.models.lean_exit import LeanExit
from prolepsis.models.native import NativeModel
from prolepsis.models.native_exit import NativeExit
from prolepsis.models.protocol import TargetModel


def make_exit(target: TargetModel, num_layers: int, vocab_size: int | None = None) -> EarlyExit:
    """Return an exit of `target` after `num_layers` layers that knows about `vocab_size` tokens (None: all).

    Raises `ConfigError` for a layer that is none of the target's but the last, `ModelLoadError` for a forward that
    cannot stop early.
    """
    info = target.info
    if not 0 < num_layers < info.num_layers:
        raise ConfigError(
            f"early_exit_layer is {num_layers}; allowed for {info.name}: 1 to {info.num_layers - 1}",
            param="early_exit_layer",
        )
    known = min(vocab_size or info.vocab_size, info.vocab_size) // VOCAB_STEP * VOCAB_STEP
    if isinstance(target, NativeModel):
        return NativeExit(target, num_layers, known)
    if isinstance(target, LeanModel):
        return LeanExit(target, num_layers, known)
    raise ModelLoadError(f"the forward {info.forward} cannot stop early; allowed: native, lean")
