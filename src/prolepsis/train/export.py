"""A trained head as others find it: weights, configuration with provenance, and a card to read."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from prolepsis.models.head_file import head_checksum, save_head
from prolepsis.models.head_layer import HeadLayer
from prolepsis.train.acceptance import Counts
from prolepsis.train.target import Target
from prolepsis.train.workplace import Workplace


def export(
    workplace: Workplace, head: HeadLayer, target: Target, by_kind: Mapping[str, Counts], said: Mapping[str, Any]
) -> None:
    """Write the head with its provenance (`models.provenance`); `said` is how it was trained, plain JSON values."""
    provenance: dict[str, Any] = {
        "version": 1,
        "target": target.name,
        "target_fingerprint": target.identity,
        "tokenizer_fingerprint": target.tokenizer.fingerprint,
        "acceptance": {kind: asdict(counts) for kind, counts in by_kind.items()},
        **said,
    }
    save_head(workplace.head, replace(head.config, provenance=provenance), head.weights, target.layer_config)
    provenance["sha256"] = head_checksum(workplace.head)
    save_head(workplace.head, replace(head.config, provenance=provenance), head.weights, target.layer_config)
