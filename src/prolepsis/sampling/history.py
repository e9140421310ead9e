"""Which tokens a sample has seen and how often it said them: what penalties count."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


class TokenHistory:
    """Counts over one sample's prompt and committed output; owned by the sample, changed only by `append`."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._ids = np.unique(np.asarray(prompt, dtype=np.int64))
        self._counts = np.zeros(len(self._ids), dtype=np.float64)
        self._slots = {token: slot for slot, token in enumerate(self._ids.tolist())}

    def append(self, tokens: Sequence[int]) -> None:
        """Count committed output tokens, each exactly once."""
        for token in tokens:
            slot = self._slots.setdefault(token, len(self._slots))
            if slot == len(self._ids):
                self._ids = np.concatenate((self._ids, np.zeros(slot + 64, dtype=np.int64)))
                self._counts = np.concatenate((self._counts, np.zeros(slot + 64, dtype=np.float64)))
            self._ids[slot] = token
            self._counts[slot] += 1

    def counts(self, prefix: Sequence[int] = ()) -> tuple[Tensor, Tensor]:  # [N] int64 ids, [N] float64
        """Return each token seen in prompt, output or `prefix` once, and how often output and `prefix` hold it.

        `prefix` is a draft's own tokens above a node: counted in the answer, never recorded.
        """
        size = len(self._slots)
        counts = self._counts[:size].copy()
        new: dict[int, int] = {}
        for token in prefix:
            slot = self._slots.get(token)
            if slot is None:
                new[token] = new.get(token, 0) + 1
            else:
                counts[slot] += 1
        ids = np.concatenate((self._ids[:size], np.fromiter(new.keys(), dtype=np.int64, count=len(new))))
        all_counts = np.concatenate((counts, np.fromiter(new.values(), dtype=np.float64, count=len(new))))
        return torch.from_numpy(ids), torch.from_numpy(all_counts)
