"""Keeps the hidden states of requests while they are generated, so that training needs no second pass."""

from collections.abc import Sequence

import torch
from torch import Tensor

from prolepsis.spec.features import Shown


class Recorder:
    """A `FeatureConsumer` that keeps what was announced with `watch` until it is taken or dropped."""

    def __init__(self, taps: Sequence[int]) -> None:
        self.taps = tuple(taps)
        self._kept: dict[str, list[Tensor]] = {}
        self._lengths: dict[str, int] = {}

    def watch(self, key: str) -> None:
        """Keep the features of the sample `key` from now on."""
        self._kept[key], self._lengths[key] = [], 0

    def take(self, shown: Sequence[Shown]) -> None:
        """Keep what a step computed; a sample that starts over replaces what was kept of it."""
        for part in shown:
            key = part.sample.key
            if key not in self._kept:
                continue
            if part.start == 0:
                self.watch(key)
            assert part.start == self._lengths[key], "features of a sample come in order and without gaps"
            self._kept[key].append(part.features.clone())  # a view would keep the features of the whole step
            self._lengths[key] += len(part.tokens)

    def collect(self, key: str) -> Tensor:  # [tokens computed, taps * hidden] bfloat16
        """Return what was kept of `key` and forget it."""
        del self._lengths[key]
        return torch.cat(self._kept.pop(key))

    def drop(self, key: str) -> None:
        """Forget `key`."""
        self._kept.pop(key, None)
        self._lengths.pop(key, None)
