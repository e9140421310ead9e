"""Measures this machine's memory bandwidth, which limits plain decoding: each token reads all weights."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

SECONDS = 0.3  # how long is measured, at least two passes


def read_bandwidth(num_bytes: int, threads: int, seconds: float = SECONDS) -> float:
    """Return bytes per second of `threads` cores that read `num_bytes` again and again; the fastest pass counts.

    As many bytes as the weights have, so that a cache that holds those holds these too.
    """
    parts = [np.ones(max(1, num_bytes // 8 // threads), np.int64) for _ in range(threads)]
    fastest, end = float("inf"), time.perf_counter() + seconds
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(_read, parts))
        while fastest == float("inf") or time.perf_counter() < end:
            started = time.perf_counter()
            list(pool.map(_read, parts))
            fastest = min(fastest, time.perf_counter() - started)
    return sum(part.nbytes for part in parts) / fastest


def _read(numbers: NDArray[np.int64]) -> int:
    return int(numbers.max())  # in wide registers, without the interpreter's lock
