"""What was trained as others find it: weights, and a configuration with provenance (`models.provenance`)."""

import shutil
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from prolepsis.models.files.tokenizer import save_tokenizer
from prolepsis.models.heads.format import save_head, weights_checksum
from prolepsis.models.heads.lean import HeadLayer
from prolepsis.models.provenance import KEY
from prolepsis.train.acceptance import Counts
from prolepsis.train.target import Target

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM


def provenance(target: Target, by_kind: Mapping[str, Counts], said: Mapping[str, Any]) -> dict[str, Any]:
    """Return provenance without the checksum; `said` is how it was trained, plain JSON values."""
    return {
        "version": 1,
        "target": target.name,
        "target_fingerprint": target.identity,
        "tokenizer_fingerprint": target.tokenizer.fingerprint,
        "acceptance": {kind: asdict(counts) for kind, counts in by_kind.items()},
        **said,
    }


def export_head(folder: Path, head: HeadLayer, target: Target, said: dict[str, Any]) -> None:
    """Write a head with its provenance."""
    save_head(folder, replace(head.config, provenance=said), head.weights, target.layer_config)
    checked = {**said, "sha256": weights_checksum(folder)}
    save_head(folder, replace(head.config, provenance=checked), head.weights, target.layer_config)


def export_draft_model(folder: Path, model: "LlamaForCausalLM", target: Target, said: dict[str, Any]) -> None:
    """Write a model with the target's tokenizer and its provenance as a transformers folder, weights in bfloat16.

    Each file is replaced whole; the configuration, which holds the weights' checksum, comes last.
    """
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    weights = {name: tensor.to(torch.bfloat16) for name, tensor in model.state_dict().items()}
    model.save_pretrained(part, state_dict=weights)
    save_tokenizer(target.path, part)
    config = type(model.config)(**{**model.config.to_dict(), "dtype": "bfloat16"})
    setattr(config, KEY, {**said, "sha256": weights_checksum(part)})
    config.save_pretrained(part)
    folder.mkdir(exist_ok=True)
    for file in sorted(part.iterdir(), key=lambda file: file.name == "config.json"):
        file.chmod(0o644)  # the library writes weights for the owner only
        file.replace(folder / file.name)
    part.rmdir()
