"""The compiled sampling kernel (`sources/sampling.cpp`): picks tokens of rows of logits, alone or on a team."""

from array import array
from collections.abc import Callable, Collection, Sequence
from ctypes import Structure, byref
from itertools import chain

import torch
from torch import Tensor

from prolepsis.engine.native.library import Library, Team, address, fields, integers, places_of, zeros

_TRUNCATION = ("d temperature", "i top_k", "d top_p min_p")


class LogitsRow(Structure):
    """Where a row's logits lie, whether they are float64, its truncation, and its key of one position."""

    _fields_ = fields("p logits", "i wide", *_TRUNCATION, "u key")


class NativeDraftRows(Structure):
    """First row of a draft, its truncation, the sample's key, the position of the first token, and its sizes."""

    _fields_ = fields("i first_row", *_TRUNCATION, "u key position", "i num_nodes num_ends limit")
    first_row: int
    num_nodes: int


class SamplingKernel:
    """The functions of the library on logits [R, V] float32 whose rows lie in one piece; V is `size`."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def argmax(self, logits: Tensor, size: int, at: Sequence[int]) -> list[int]:
        """Return the lowest id of the largest value of each of the rows `at`."""
        return self._of_rows(self._library.argmax, logits, size, at)

    def below_infinity(self, logits: Tensor, size: int, at: Sequence[int]) -> list[bool]:
        """Return of each of the rows `at` whether its values are numbers below infinity."""
        return [bool(below) for below in self._of_rows(self._library.below_infinity, logits, size, at)]

    def _of_rows(self, function: Callable[..., int], logits: Tensor, size: int, at: Sequence[int]) -> list[int]:
        rows, found = _rows(logits, size, at), zeros(len(at))
        function(logits.data_ptr(), logits.stride(0), size, *places_of(rows), len(rows), *places_of(found))
        return found.tolist()

    def pick(self, rows: Sequence[LogitsRow], size: int, team: Team | None) -> list[int]:
        """Return the token of each row; the caller holds their logits."""
        tokens = zeros(len(rows))
        listed = (LogitsRow * len(rows))(*rows)
        self._library.pick(listed, len(rows), size, team and team.pointer, *places_of(tokens))
        return tokens.tolist()

    def verify(
        self,
        logits: Tensor,
        size: int,
        drafts: Sequence[NativeDraftRows],
        contents: Sequence[tuple[Sequence[int], Sequence[int], Collection[int]]],
        team: Team | None,
    ) -> list[tuple[list[int], list[int], bool]]:
        """Return of each draft the picked tokens, the accepted nodes, and whether the last token was drafted.

        `contents` are tokens and parents of each draft, and the tokens that end it.
        """
        _rows(logits, size, [row for draft in drafts for row in (draft.first_row, draft.first_row + draft.num_nodes)])
        inputs = [integers(chain.from_iterable(content[i] for content in contents)) for i in range(3)]
        places = len(inputs[0]) + len(drafts)
        tokens, path, counts = zeros(places), zeros(places), zeros(3 * len(drafts))
        listed = (NativeDraftRows * len(drafts))(*drafts)
        self._library.verify(
            logits.data_ptr(),
            logits.stride(0),
            size,
            listed,
            len(drafts),
            *places_of(*inputs),
            team and team.pointer,
            *places_of(tokens, path, counts),
        )
        walked, place = [], 0
        for i, draft in enumerate(drafts):
            num_tokens, num_accepted, is_drafted = counts[3 * i : 3 * i + 3]
            taken = tokens[place : place + num_tokens].tolist(), path[place : place + num_accepted].tolist()
            walked.append((*taken, bool(is_drafted)))
            place += draft.num_nodes + 1
        return walked

    def probabilities(self, row: LogitsRow, size: int, target: Tensor) -> None:
        """Write a row's distribution to `target` [size] float64."""
        self._library.probabilities(byref(row), size, address(target, torch.float64, size))

    def gumbel(self, key: int, tokens: Tensor) -> Tensor:  # int64 -> float64 of the same shape
        ids = tokens.contiguous()
        noise = torch.empty(ids.shape, dtype=torch.float64)
        self._library.gumbel(key, address(ids, torch.int64, *ids.shape), ids.numel(), noise.data_ptr())
        return noise


def row_of(values: Tensor, size: int, truncation: tuple[float, int, float, float], key: int) -> LogitsRow:
    """Return a row of logits [size], float32 or float64, which the caller holds."""
    wide = values.dtype == torch.float64
    at = address(values, torch.float64 if wide else torch.float32, size)
    return LogitsRow(at, wide, *truncation, key)


def _rows(logits: Tensor, size: int, at: Sequence[int]) -> "array[int]":
    """Return row numbers; raises `ValueError` for logits or rows that the kernel does not read."""
    rows = integers(at)
    is_read = (
        logits.dtype == torch.float32
        and logits.stride(-1) == 1
        and logits.shape[1] >= size
        and logits.device.type == "cpu"
    )
    if not is_read or (rows and not (min(rows) >= 0 and max(rows) < len(logits))):
        raise ValueError(
            f"rows {list(at)} of {logits.dtype} {list(logits.shape)}; allowed: float32 rows of {size} on the CPU"
        )
    return rows
