"""What a pass of a model costs on this machine, measured for commands, and the forward and self-check behind it."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from prolepsis.core.config import EngineConfig
from prolepsis.core.requests import SamplingDefaults
from prolepsis.core.terminal.output import note

if TYPE_CHECKING:
    from prolepsis.engine.drafting.cost import CostCurve
    from prolepsis.engine.drafting.window import PayingLoads
    from prolepsis.engine.models.files.quality import MeasuredQuality
    from prolepsis.engine.models.protocol import TargetModel
    from prolepsis.engine.models.targets.native import NativeModel

KIND_ROWS = (1, 8, 64)
_CHUNK = 64  # tokens of a sequence whose attention is measured
_ROUNDS = 100_000  # of products on registers, some milliseconds
_MULTIPLIES = 1 << 28  # at least, of any other kind


@dataclass(frozen=True, slots=True)
class ProductKind:
    """What a kind of product is of a pass, and how near to the machine's peak it comes in cache on one thread."""

    name: str
    share: float  # of the multiply-adds with weights
    reached: dict[int, float]  # by rows: share of the peak


@dataclass(frozen=True, slots=True)
class MachineLimit:
    """What bounds a pass of a model on this machine: reading its weights once, and multiplying them for each row."""

    bytes_per_pass: int
    read_bytes_per_s: float
    multiplies_per_row: int  # attention, which depends on the context, is left out
    multiplies_per_s: float  # of products of bytes on registers
    long_ms: dict[int, float]  # by tokens, of passes beyond the curve
    kinds: tuple[ProductKind, ...]

    @property
    def memory_ms(self) -> float:
        return 1000.0 * self.bytes_per_pass / self.read_bytes_per_s

    def arithmetic_ms(self, rows: int) -> float:
        return 1000.0 * rows * self.multiplies_per_row / self.multiplies_per_s

    def reached(self, rows: int, ms: float) -> float:
        """Return the share that the larger bound has of the time that a pass takes."""
        return max(self.memory_ms, self.arithmetic_ms(rows)) / ms


@dataclass(frozen=True, slots=True)
class Profile:
    """The profile of a model on this machine."""

    model: str
    forward: str
    fallback: str | None  # reason why a faster forward for this device does not run, or None
    threads: int
    exactness: str
    exactness_reason: str
    default_sampling: SamplingDefaults  # values for sampling parameters that requests leave out
    file: Path  # file of the curve; the engine reads it at its next start
    curve: "CostCurve"
    quality: "MeasuredQuality | None" = None
    """Loss of quality through rounding in this model file, if it was measured."""
    kernel: str | None = None
    """The native forward's variant, where it comes from, and why each better one does not run."""
    limit: MachineLimit | None = None  # of the native forward on weights in less than 16 bits

    @property
    def loads(self) -> "PayingLoads":
        from prolepsis.engine.drafting.window import paying_loads

        return paying_loads(self.curve)


def take_profile(config: EngineConfig, *, fresh: bool, with_limit: bool = False) -> Profile:
    """Load the model, run the self-check, and measure the curve (or read the stored one, unless `fresh`).

    `with_limit`: measure what bounds its passes too, which takes some seconds more.
    """
    from prolepsis.engine.exactness import decide, passed_file
    from prolepsis.engine.models.files.quality import measured_quality
    from prolepsis.engine.models.files.store import resolve
    from prolepsis.engine.models.load import build_of, load_model
    from prolepsis.engine.models.targets.native import NativeModel
    from prolepsis.engine.native.processor import default_threads
    from prolepsis.engine.profile import cost_curve, curve_file

    loaded = load_model(config)
    rounding = loaded.model.info.computation
    measured = {quality.computation: quality for quality in measured_quality(resolve(config.model, config.model_dir))}
    note(f"{loaded.model.info.forward}: checking row invariance, measuring passes")
    threads = config.threads or default_threads()
    build = build_of(loaded.model)
    passed = passed_file(loaded.fingerprint, threads, build)
    exactness = decide(loaded.model, config.strict, passed, fresh=True)
    file = curve_file(loaded.fingerprint, threads, build)
    curve = cost_curve(loaded.model, file, fresh=fresh)
    return Profile(
        model=loaded.model.info.name,
        forward=loaded.model.info.forward,
        fallback=loaded.fallback,
        threads=threads,
        exactness=exactness.mode,
        exactness_reason=exactness.reason,
        default_sampling=loaded.default_sampling,
        file=file,
        curve=curve,
        quality=measured.get(rounding),
        kernel=loaded.model.kernel.describe() if isinstance(loaded.model, NativeModel) else None,
        limit=_limit(loaded.model, resolve(config.model, config.model_dir), threads, curve) if with_limit else None,
    )


def _limit(model: "TargetModel", path: Path, threads: int, curve: "CostCurve") -> MachineLimit | None:
    from prolepsis.engine.models.files.described import bytes_per_pass
    from prolepsis.engine.models.targets.native import NativeModel
    from prolepsis.engine.native.bandwidth import multiply_rate, read_bandwidth
    from prolepsis.engine.profile import long_passes

    if not isinstance(model, NativeModel) or "int8" not in model.info.computation:
        return None
    num_bytes, multiplies = bytes_per_pass(path), sum(size for *_, size in model.products)
    peak = multiply_rate(partial(model.library.multiply_registers, _ROUNDS), threads, seconds=1.0)
    by_passes = 1000.0 * num_bytes / min(map(min, curve.profiled))  # on a shared host memory's speed changes
    bandwidth, kinds = max(read_bandwidth(num_bytes, threads), by_passes), tuple(product_kinds(model))
    return MachineLimit(num_bytes, bandwidth, multiplies, peak, long_passes(model, curve), kinds)


def rated_passes(num_weights: int, num_bytes: float, threads: int) -> "CostCurve":
    """Return passes of a model that is not here, by rates measured here; raises `ModelLoadError` without a kernel."""
    from prolepsis.engine.drafting.cost import CostCurve
    from prolepsis.engine.models.files.stored import Q8_0
    from prolepsis.engine.native.bandwidth import multiply_rate, read_bandwidth
    from prolepsis.engine.native.decoder import pick_decoder

    multiply = partial(pick_decoder().library.multiply_in_cache, Q8_0, 8)
    memory_ms = 1000.0 * num_bytes / read_bandwidth(int(min(num_bytes, 1 << 29)), threads)  # which no cache holds
    # half of it hides behind reading, about as measured with 1.5 billion weights
    token_ms = 500.0 * num_weights / multiply_rate(partial(multiply, 1 + _MULTIPLIES // multiply(1)), threads)
    return CostCurve((1, 8), (0,), ((memory_ms + token_ms,), (memory_ms + 8 * token_ms,)))


def product_kinds(model: "NativeModel", seconds: float = 0.5) -> "Iterator[ProductKind]":
    """Yield formats of the layers' weights, the output and attention, but none in bf16; `seconds` are for each rate."""
    from prolepsis.engine.models.files.stored import BF16, PACKED
    from prolepsis.engine.native.bandwidth import multiply_rate

    library, shape, total = model.library, model.shape, sum(size for *_, size in model.products)
    peak = multiply_rate(partial(library.multiply_registers, _ROUNDS), 1, seconds)

    @cache
    def reached(function: str, *what: int) -> float:
        multiply = partial(getattr(library, function), *what)
        return multiply_rate(partial(multiply, 1 + _MULTIPLIES // multiply(1)), 1, seconds) / peak

    for part, kind, size in model.products:
        if kind != BF16:
            rates = {rows: reached("multiply_in_cache", kind, rows) for rows in KIND_ROWS}
            yield ProductKind(f"{part}, {PACKED[kind]}", size / total, rates)
    for cached in (512, 8192):
        seen = sum(min(layer.window or cached, cached) for layer in shape.layers)
        rate = reached("attend_in_cache", shape.head_dim, shape.heads // shape.kv_heads, _CHUNK, cached)
        share = 2 * seen * shape.heads * shape.head_dim / total
        yield ProductKind(f"attention, {cached} cached", share, {_CHUNK: rate})
