"""`prolepsis profile`: what a pass costs on this machine, and whether speculation is bitwise exact here."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prolepsis.cli.config import Settings
from prolepsis.cli.flags import configured
from prolepsis.cli.models import ensure_model
from prolepsis.cli.output import AsJson, note, print_facts, print_json, print_table, quiet_logs
from prolepsis.core.config import EngineConfig
from prolepsis.core.requests import SamplingDefaults

if TYPE_CHECKING:
    from prolepsis.models.files.quality import MeasuredQuality
    from prolepsis.spec.cost import CostCurve


@dataclass(frozen=True, slots=True)
class Profile:
    """The profile of a model on this machine."""

    model: str
    forward: str
    fallback: str | None
    """Reason why a faster forward for this device does not run, or None."""
    threads: int
    exactness: str
    exactness_reason: str
    default_sampling: SamplingDefaults
    """Values for sampling parameters that requests leave out."""
    file: Path
    """File of the curve; the engine reads it at its next start."""
    curve: "CostCurve"
    quality: "MeasuredQuality | None" = None
    """Loss of quality through rounding in this model file, if it was measured."""


@configured(EngineConfig)
def profile(
    settings: Settings,
    *,
    keep: Annotated[
        bool, typer.Option("--keep", help="show the stored cost curve instead of measuring a new one")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Measure and store what a forward pass costs on this machine; show the forward and the self-check."""
    quiet_logs()
    ensure_model(settings)
    found = take_profile(settings.engine, fresh=not keep)
    if as_json:
        print_json(document(found))
    else:
        show(found)


def take_profile(config: EngineConfig, *, fresh: bool) -> Profile:
    """Load the model, run the self-check, and measure the curve (or read the stored one, unless `fresh`)."""
    from prolepsis.engine.exactness import decide, passed_file
    from prolepsis.engine.profile import cost_curve, curve_file
    from prolepsis.models.files.quality import measured_quality
    from prolepsis.models.files.store import resolve
    from prolepsis.models.load import build_of, load_model
    from prolepsis.native.processor import default_threads

    loaded = load_model(config)
    rounding = loaded.model.info.computation
    measured = {one.computation: one for one in measured_quality(resolve(config.model, config.model_dir))}
    note(f"{loaded.model.info.forward}: checking row invariance, measuring passes")
    threads = config.threads or default_threads()
    build = build_of(loaded.model)
    passed = passed_file(loaded.fingerprint, threads, build)
    exactness = decide(loaded.model, config.strict, passed, fresh=True)
    file = curve_file(loaded.fingerprint, threads, build)
    return Profile(
        model=loaded.model.info.name,
        forward=loaded.model.info.forward,
        fallback=loaded.fallback,
        threads=threads,
        exactness=exactness.mode,
        exactness_reason=exactness.reason,
        default_sampling=loaded.default_sampling,
        file=file,
        curve=cost_curve(loaded.model, file, fresh=fresh),
        quality=measured.get(rounding),
    )


def document(found: Profile) -> dict[str, object]:
    """Return the profile as programs read it; `ms[i][j]` is a pass of `tokens[i]` tokens at `contexts[j]`."""
    facts = {name: getattr(found, name) for name in Profile.__slots__ if name not in ("curve", "quality")}
    curve = {"tokens": found.curve.tokens, "contexts": found.curve.contexts, "ms": found.curve.profiled}
    quality = found.quality and asdict(found.quality)
    return {**facts, "default_sampling": asdict(found.default_sampling), "curve": curve, "quality": quality}


def show(found: Profile) -> None:
    """Print the facts, then the curve: milliseconds, and multiples of the smallest pass."""
    facts = [("model", found.model), ("forward", found.forward)]
    if found.fallback:
        facts.append(("no faster forward because", found.fallback))
    facts += [("threads", str(found.threads)), ("exactness", found.exactness), ("because", found.exactness_reason)]
    facts.append(("quality", found.quality.describe() if found.quality else "not measured for this model file"))
    facts.append(("default sampling", found.default_sampling.describe()))
    print_facts([*facts, ("cost curve", found.file)])
    first = found.curve.profiled[0]
    rows = [
        [
            str(count),
            *(f"{ms:.2f} ({ms / base:.2f}x)" if base else f"{ms:.2f}" for ms, base in zip(line, first, strict=True)),
        ]
        for count, line in zip(found.curve.tokens, found.curve.profiled, strict=True)
    ]
    contexts = [f"context {context}" for context in found.curve.contexts]
    print_table("milliseconds a pass", ["tokens", *contexts], rows)
