"""`prolepsis profile early-exit`: whether drafting with the model's own first layers pays, and from which layer."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from prolepsis.cli.bench.prompts import encode_prompts, load_prompts
from prolepsis.cli.output import note, print_facts, print_table
from prolepsis.core.config import EngineConfig
from prolepsis.core.requests import SamplingParams

if TYPE_CHECKING:
    from prolepsis.engine.exit_search import ExitFigures, ExitSearch

NUM_TOKENS = 64
"""Tokens that the model continues each of the shipped prompts with."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found for a model on this machine."""

    model: str
    forward: str
    file: Path
    """Where the layer is kept; an engine that names the proposer but no layer reads it."""
    search: "ExitSearch"


def search_exit(config: EngineConfig) -> Found:
    """Load the model, search on the shipped prompts, greedily, and keep the best layer."""
    from prolepsis.engine.exit_search import keep_layer, layer_file, search
    from prolepsis.models.load import load_model
    from prolepsis.native.processor import default_threads

    loaded = load_model(config)
    info = loaded.model.info
    note(f"{info.forward}: the model continues the shipped prompts, then exits all over it guess what it said")
    prompts = [prompt.token_ids for prompt in encode_prompts(load_prompts(None), loaded.tokenizer)]
    found = search(loaded.model, prompts, SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS))
    file = layer_file(loaded.fingerprint, config.threads or default_threads())
    keep_layer(file, found.best.num_layers)
    return Found(info.name, info.forward, file, found)


def document(found: Found) -> dict[str, object]:
    """Return the figures as programs read them."""
    search = found.search
    facts = {name: getattr(found, name) for name in ("model", "forward", "file")}
    best = {"num_layers": search.best.num_layers, "depth": search.best.depth, "speedup": search.best.speedup}
    return {**facts, **asdict(search), "best": best, "worth_it": search.worth_it}


def show(found: Found) -> None:
    """Print the facts, a line for each layer, and what follows from them."""
    search = found.search
    known = f"{search.vocab_size} ({100 * search.coverage:.1f}% of {search.num_tokens} continued tokens)"
    passes = ", ".join(f"{ms:.1f}" for ms in search.pass_ms)
    facts = [("model", found.model), ("forward", found.forward), ("tokens known", known)]
    print_facts([*facts, ("ms of a pass over 1, 2, ... tokens", passes), ("layer kept in", found.file)])
    columns = ["layers", *(f"{k}" for k in range(1, len(search.pass_ms))), "ms/token", "depth", "speed-up"]
    title = "first layers as drafter: share of places where the first 1, 2, ... tokens are right; what is predicted"
    print_table(title, columns, [_line(each) for each in search.exits])
    print(verdict(search))


def verdict(search: "ExitSearch") -> str:
    """Return one sentence: what to set, or that it does not pay."""
    best = search.best
    what = f"{best.speedup:.2f}x of plain decoding, from layer {best.num_layers} at depth {best.depth}"
    if search.worth_it:
        return f"Worth it: {what}. Name early_exit among the proposers."
    return f"Do not use it: the best is {what}. It takes a model trained to exit early."


def _line(found: "ExitFigures") -> list[str]:
    shares = [f"{100 * alive:.1f}%" for alive in found.survivals]
    return [str(found.num_layers), *shares, f"{found.level_ms:.2f}", str(found.depth), f"{found.speedup:.2f}x"]
