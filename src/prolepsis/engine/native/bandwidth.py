"""Measures what bounds a pass on this machine: the reading of memory, and products of bytes."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

SECONDS = 0.3  # how long is measured, at least two passes


def read_bandwidth(num_bytes: int, threads: int, seconds: float = SECONDS) -> float:
    """Return bytes per second of `threads` cores that read `num_bytes` again and again; the fastest pass counts.

    As many bytes as the weights have, so that a cache that holds those holds these too.
    """
    parts = [np.ones(max(1, num_bytes // 8 // threads), np.int64) for _ in range(threads)]
    least_s = _fastest(lambda thread: int(parts[thread].max()), threads, seconds)  # in wide registers, without the lock
    return sum(part.nbytes for part in parts) / least_s


def multiply_rate(multiply: Callable[[], int], threads: int, seconds: float = SECONDS) -> float:
    """Return multiply-adds per second of `threads` cores; `multiply` does some, and returns their number."""
    return threads * multiply() / _fastest(lambda _: multiply(), threads, seconds)


def _fastest(work: Callable[[int], int], threads: int, seconds: float) -> float:
    """Return the least seconds that all threads, each with its number, take for their work."""
    fastest, end = float("inf"), time.perf_counter() + seconds
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
        while fastest == float("inf") or time.perf_counter() < end:
            started = time.perf_counter()
            list(pool.map(work, range(threads)))
            fastest = min(fastest, time.perf_counter() - started)
    return fastest
