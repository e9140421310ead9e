"""Keeps the numbers of JSON answers finite: 1e999 is JSON, and infinity or an error to its reader.

llguidance's number has no bound on its digits, and a schema cannot give it one without losing the exponent.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

_RUN = re.compile(rb"[0-9eE.+-]+")
_TAIL = re.compile(rb"(?:([eE][+-]?)([0-9]*)|([0-9]+))\Z")
_LONG_EXPONENT = re.compile(rb"[eE][+-]?[0-9]{3}")
_DIGITS = re.compile(rb"[+-]?([0-9]*)")
MAX_DIGITS = 200  # digits in a row; with `MAX_EXPONENT_DIGITS` the largest number is less than 1e300
MAX_EXPONENT_DIGITS = 2


class FiniteNumbers:
    """The tokens of one vocabulary that would make a number too long, by the text before them."""

    def __init__(self, vocab_size: int, token_bytes: Callable[[int], bytes]) -> None:
        runs, self._tails, self._whole = defaultdict[bytes, list[int]](list), dict[int, bytes](), set[int]()
        self._outside: list[int] = []
        for token in range(vocab_size):
            raw = token_bytes(token)
            if run := _RUN.match(raw):
                runs[run[0]].append(token)
            if tail := re.search(rb"[0-9eE.+-]+\Z", raw):
                self._tails[token] = tail[0]
                if tail[0] == raw:
                    self._whole.add(token)
            if raw in (b"x", b"q", b'"', b"\\", b"Z"):
                self._outside.append(token)
        self._runs = {run: np.array(tokens) for run, tokens in runs.items()}
        self._long_exponents = [run for run in runs if _LONG_EXPONENT.search(run)]
        self._num_digits = {run: len(_digits(run)) for run in runs}
        self._most_digits = max(self._num_digits.values(), default=0)

    def concern(self, token: int) -> bool:
        """Return whether a number may end with `token`."""
        return token in self._tails

    def bounded(self, mask: NDArray[np.bool_], tokens: Sequence[int]) -> NDArray[np.bool_]:
        """Return `mask`, the tokens that may follow `tokens`, without those that make a number of JSON too long.

        Ask only where the last of the tokens is of `concern`.
        """
        if mask[self._outside].any():  # inside of strings and of free text letters or quotes may follow
            return mask
        found = _TAIL.search(self._tail(tokens))
        banned = self._banned(found) if found else []
        if not banned:
            return mask
        bounded = mask.copy()
        bounded[np.concatenate([self._runs[run] for run in banned])] = False
        return bounded if bounded.any() else mask

    def _banned(self, tail: re.Match[bytes]) -> list[bytes]:
        exponent, behind, digits = tail.groups()
        if exponent is not None:
            room = MAX_EXPONENT_DIGITS - len(behind)
        elif len(digits) + self._most_digits > MAX_DIGITS:
            room = MAX_DIGITS - len(digits)
        else:
            return self._long_exponents
        return [run for run, count in self._num_digits.items() if count > room] + self._long_exponents

    def _tail(self, tokens: Sequence[int]) -> bytes:
        parts = list[bytes]()
        for token in reversed(tokens[-2 * MAX_DIGITS :]):
            parts.append(self._tails.get(token, b""))
            if token not in self._whole:
                break
        return b"".join(reversed(parts))


def _digits(run: bytes) -> bytes:
    found = _DIGITS.match(run)
    return found[1] if found else b""
