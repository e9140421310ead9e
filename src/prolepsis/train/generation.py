"""Training data made by an engine around the target: builds it, runs the synthesis, writes shards."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from prolepsis.core.config import EngineConfig
from prolepsis.engine.build import assemble
from prolepsis.models.load import LoadedModel, load_model
from prolepsis.train.prompts import Planner
from prolepsis.train.shards import Manifest, ShardWriter, shards_of
from prolepsis.train.synthesis import Recorder, Synthesiser, SynthesisLimits
from prolepsis.train.words import words_of

CONTEXT = 1280
"""Longest prompt and answer, in tokens."""


@dataclass(frozen=True, slots=True)
class DataRequest:
    """How much text to make, and from what."""

    folder: Path
    tokens: int
    """Prompt and response tokens with features, over all shards of the folder."""
    taps: tuple[int, ...]
    prompts: Sequence[str] = ()
    seed: int = 0
    limits: SynthesisLimits = field(default_factory=SynthesisLimits)
    tokens_per_shard: int = 65536


def generate(config: EngineConfig, request: DataRequest, progress: Callable[[int], None]) -> None:
    """Write shards until the folder holds `request.tokens`; what it holds already counts. `progress` gets that sum."""
    done = {number for shard in shards_of(request.folder) for number in shard.numbers}
    total = sum(shard.num_tokens for shard in shards_of(request.folder))
    progress(total)
    if total >= request.tokens:
        return
    loaded = load_model(plain(config))
    recorder = Recorder(request.taps)
    engine = assemble(plain(config), loaded, consumers=[recorder])
    writer = ShardWriter(request.folder, manifest_of(loaded, request), tokens_per_shard=request.tokens_per_shard)
    words = words_of(loaded.tokenizer, loaded.model.info.vocab_size)
    planner = Planner(request.seed, request.prompts, words)
    synthesis = Synthesiser(engine, loaded.tokenizer, recorder, planner, request.limits)
    for document in synthesis.documents(number for number in itertools.count() if number not in done):
        writer.add(document)
        total += len(document.tokens)
        progress(total)
        if total >= request.tokens:
            break
    writer.flush()


def plain(config: EngineConfig) -> EngineConfig:
    """Return `config` for generating: nothing is drafted, and no prompt token is found in the prefix index."""
    changes = {"num_speculative_tokens": 0, "prefix_cache": False, "strict": "off", "max_model_len": CONTEXT}
    return config.model_copy(update=changes)


def manifest_of(loaded: LoadedModel, request: DataRequest) -> Manifest:
    """Return what the shards say of their origin."""
    info = loaded.model.info
    hidden = getattr(loaded.model, "shape").hidden  # noqa: B009  every forward that shows hidden states has a shape
    return Manifest(info.name, loaded.identity, request.taps, hidden, info.vocab_size)
