"""Random draft heads for tiny targets."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from prolepsis.engine.models.heads.format import (
    CONFIG,
    HeadConfig,
    HeadWeights,
    offsets,
    save_head,
    tensor_shapes,
    weights_checksum,
)
from prolepsis.engine.models.heads.levels import LEVELS, LevelWeights
from prolepsis.engine.models.targets.lean_shape import LeanShape

DRAFT_VOCAB = 64


def random_head(
    target: LeanShape, seed: int = 3, sizes: Mapping[str, Any] | None = None, **flags: Any
) -> tuple[HeadConfig, HeadWeights]:
    """Return a random head for `target` on layers 0, 1 and 2; its draft tokens are spread over the vocabulary.

    `sizes`: of its layer, where they are not the target's.
    """
    changes: dict[str, Any] = {"intermediate": 96, **(sizes or {})}
    shape = replace(target.llama_layer(), **changes)
    config = HeadConfig(shape=shape, aux_layers=(0, 1, 2), draft_vocab=DRAFT_VOCAB, **flags)
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor | None] = {"input_norm": None}
    for name, size in tensor_shapes(config).items():
        noise = torch.randn(size, generator=generator)
        tensors[name] = (1.0 + 0.1 * noise if "norm" in name else 0.15 * noise).bfloat16()
    chosen = torch.randperm(shape.vocab, generator=generator)[:DRAFT_VOCAB].sort().values
    tensors["d2t"], tensors["t2d"] = offsets(chosen, shape.vocab)
    return config, HeadWeights(**tensors)  # type: ignore[arg-type]


def save_random_head(folder: Path, target: LeanShape, provenance: Mapping[str, Any] | None = None) -> Path:
    """Write a random head for `target` to `folder`, as its trainer or somebody else would, and return `folder`."""
    config, weights = random_head(target, verifier="tiny", provenance=provenance or {})
    save_head(folder, config, weights, {"rope_type": "default", "rope_theta": 10000.0})
    return folder


def levels_report(folder: Path) -> dict[str, Any]:
    """Return the report that the levels in `folder` carry; empty where there are none."""
    if not (folder / LEVELS).is_file():
        return {}
    with safe_open(str(folder / LEVELS), framework="pt") as file:
        report: dict[str, Any] = json.loads(file.metadata()["report"])
    return report


def record_checksum(folder: Path) -> None:
    """Write the checksum of a head's weights into its configuration, as its trainer does."""
    document = json.loads((folder / CONFIG).read_text())
    document["prolepsis"]["sha256"] = weights_checksum(folder)
    (folder / CONFIG).write_text(json.dumps(document))


def random_levels(hidden: int, count: int = 3, width: int = 32, seed: int = 9) -> LevelWeights:
    """Return random levels, strong enough that what was drafted changes what follows."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*size: int) -> Tensor:
        return (0.3 * torch.randn(size, generator=generator)).bfloat16()

    return LevelWeights(
        enter=noise(count, width, hidden),
        leave=noise(count, hidden, width),
        state=noise(width, hidden),
        token=noise(width, hidden),
        out=2 * noise(hidden, width),
    )
