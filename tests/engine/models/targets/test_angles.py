"""The rotation's tables of the native forward are the same in every process, on every processor."""

import math

import torch

from prolepsis.engine.models.targets.lean_shape import Rope
from prolepsis.engine.models.targets.native import angles


def test_angles_are_rounded_once() -> None:
    rope = Rope((1.0, 0.3, 1e-4), scaling=1.5)
    cosine, sine = angles(rope, 300)
    scaling = torch.tensor(1.5)
    for position in range(300):
        for i, inv_freq in enumerate(torch.tensor(rope.inv_freq)):
            angle = float(torch.tensor(float(position)) * inv_freq)
            assert cosine[position, i] == torch.tensor(math.cos(angle)) * scaling
            assert sine[position, i] == torch.tensor(math.sin(angle)) * scaling
