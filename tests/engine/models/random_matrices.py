"""Random weights in the block formats of files."""

import gguf
import numpy as np
import torch

from prolepsis.engine.models.files.stored import StoredMatrix

_SCALES = {3: (0, 2), 7: (0, 2), 12: (0, 2), 13: (0, 2), 14: (208,)}
"""Where the float16 scales of a block stand, by ggml's number of the format; elsewhere at its start."""


def random_matrix(shape: tuple[int, ...], kind: int, seed: int) -> StoredMatrix:
    """Random bytes whose float16 scales are small: any bytes are weights in every format."""
    rows, columns = shape
    generator = np.random.default_rng(seed)
    block, size = gguf.constants.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]
    data = generator.integers(0, 256, (rows, columns // block, size), dtype=np.uint8)
    for at in _SCALES.get(kind, (0,)):
        scales = generator.uniform(0.0005, 0.001, (rows, columns // block)) * (0.1 if kind >= 12 else 1)
        data[:, :, at : at + 2] = scales.astype(np.float16)[..., None].view(np.uint8)
    return StoredMatrix(torch.from_numpy(data.reshape(rows, -1)), kind)
