"""A draft head that is whole and wrong: the same shapes, checksums that fit, and a vocabulary in another order."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from prolepsis.engine.models.heads.format import CONFIG, NAMES, WEIGHTS, weights_checksum
from prolepsis.engine.models.heads.levels import LEVELS, load_levels, save_levels
from prolepsis.engine.models.provenance import KEY


def damaged_head(source: Path, folder: Path, seed: int = 0) -> Path:
    """Write the head of `source` to `folder` with the rows of its output shuffled: as sure as before, of other tokens.

    Return `folder`. Nothing about the files gives it away: its checksum is recorded and its levels are bound to it.
    """
    folder.mkdir(parents=True)
    tensors = load_file(source / WEIGHTS)
    output = tensors[NAMES["lm_head"]]
    order = torch.randperm(len(output), generator=torch.Generator().manual_seed(seed))
    tensors[NAMES["lm_head"]] = output[order].contiguous()
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    document = json.loads((source / CONFIG).read_text())
    document[KEY] = {**document.get(KEY, {}), "sha256": weights_checksum(folder)}
    (folder / CONFIG).write_text(json.dumps(document))
    if (source / LEVELS).is_file():
        levels = load_levels(source, document["target_hidden_size"])
        assert levels is not None, "levels belong to the head beside them"
        save_levels(folder, levels, {})
    return folder
