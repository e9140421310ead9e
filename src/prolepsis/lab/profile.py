"""`prolepsis profile`: what a pass costs on this machine, and whether speculation is bitwise exact here."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from prolepsis.core.config import EngineConfig
from prolepsis.core.terminal.config import Settings
from prolepsis.core.terminal.flags import configured
from prolepsis.core.terminal.output import AsJson, print_facts, print_json, print_table, quiet_logs
from prolepsis.engine.commands.downloads import ensure_model
from prolepsis.engine.commands.profile import KIND_ROWS, MachineLimit, Profile, take_profile

if TYPE_CHECKING:
    from prolepsis.engine.drafting.cost import CostCurve


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
    result = take_profile(settings.engine, fresh=not keep, with_limit=True)
    if as_json:
        print_json(document(result))
    else:
        show(result)


def document(result: Profile) -> dict[str, object]:
    """Return the profile as programs read it; `ms[i][j]` is a pass of `tokens[i]` tokens at `contexts[j]`."""
    facts = {name: getattr(result, name) for name in Profile.__slots__ if name not in ("curve", "quality")}
    curve = {"tokens": result.curve.tokens, "contexts": result.curve.contexts, "ms": result.curve.profiled}
    quality = result.quality and asdict(result.quality)
    loads = {**asdict(result.loads), "sentence": result.loads.describe()}
    sampling = asdict(result.default_sampling)
    limit = result.limit and asdict(result.limit)
    own = {"curve": curve, "paying_loads": loads, "quality": quality, "limit": limit}
    return {**facts, "default_sampling": sampling, **own}


def show(result: Profile) -> None:
    """Print the facts, then the curve: milliseconds, and multiples of the smallest pass."""
    facts = [("model", result.model), ("forward", result.forward)]
    if result.fallback:
        facts.append(("no faster forward because", result.fallback))
    if result.kernel:
        facts.append(("kernel", result.kernel))
    facts += [("threads", str(result.threads)), ("exactness", result.exactness), ("because", result.exactness_reason)]
    facts.append(("quality", result.quality.describe() if result.quality else "not measured for this model file"))
    facts.append(("default sampling", result.default_sampling.describe()))
    facts.append(("by the cost of passes", result.loads.describe()))
    print_facts([*facts, ("cost curve", result.file)])
    first = result.curve.profiled[0]
    rows = [
        [
            str(count),
            *(f"{ms:.2f} ({ms / base:.2f}x)" if base else f"{ms:.2f}" for ms, base in zip(line, first, strict=True)),
        ]
        for count, line in zip(result.curve.tokens, result.curve.profiled, strict=True)
    ]
    contexts = [f"context {context}" for context in result.curve.contexts]
    print_table("milliseconds a pass", ["tokens", *contexts], rows)
    if result.limit is not None:
        _show_limit(result.limit, result.curve)


def _show_limit(limit: MachineLimit, curve: "CostCurve") -> None:
    """Print what bounds a pass here beside what it takes, at the least context: attention is not in the bounds."""
    read, multiplied = limit.read_bytes_per_s / 1e9, limit.multiplies_per_s / 1e9
    rows = []
    taken = {count: line[0] for count, line in zip(curve.tokens, curve.profiled, strict=True)}
    for count, least in (taken | limit.long_ms).items():
        times = (f"{ms:.1f}" for ms in (least, limit.memory_ms, limit.arithmetic_ms(count)))
        rows.append([str(count), *times, f"{limit.reached(count, least):.0%}"])
    title = f"of this machine's limit: it reads {read:.0f} GB/s and multiplies {multiplied:.0f} G/s"
    print_table(title, ["tokens", "ms", "by memory", "by arithmetic", "reached"], rows)
    kinds = [
        [kind.name, f"{kind.share:.0%}", *(f"{kind.reached[n]:.0%}" if n in kind.reached else "" for n in KIND_ROWS)]
        for kind in limit.kinds
    ]
    title = "products in cache on one thread: share of the multiplications with weights, and of the peak by rows"
    print_table(title, ["product", "share", *map(str, KIND_ROWS)], kinds)
