"""What says that the system refuses memory, and what only looks like it."""

import errno

import numpy as np
import pytest
import torch

from prolepsis.core.errors import MemoryPlanError, ModelLoadError
from prolepsis.core.memory_failures import memory_failure, memory_failures

REFUSALS = [
    MemoryError(),
    MemoryError("Unable to allocate 108. MiB for an array"),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
    OSError("libtorch_cpu.so: failed to map segment from shared object"),
    ImportError("libtorch_cpu.so: failed to map segment from shared object"),
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
        "allocate 805306368 bytes. Error code 12 (Cannot allocate memory)"
    ),
    RuntimeError("can't start new thread"),
    RuntimeError("std::bad_alloc"),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
]


@pytest.mark.parametrize("error", REFUSALS, ids=lambda error: f"{type(error).__name__} {error}"[:40])
def test_a_refusal_is_one_error_that_says_what_to_do(error: Exception) -> None:
    failure = memory_failure(error)
    assert failure is not None
    assert "raise the limits" in str(failure)
    assert (str(error) or "MemoryError")[-60:] in str(failure)


def test_what_numpy_and_torch_raise_is_known() -> None:
    with pytest.raises(MemoryPlanError, match="Unable to allocate"), memory_failures():
        np.empty(1 << 55, dtype=np.uint8)
    with pytest.raises(MemoryPlanError), memory_failures():
        torch.empty(1 << 55, dtype=torch.uint8)


def test_an_error_that_was_caused_by_a_refusal_is_one() -> None:
    error = ModelLoadError("the file cannot be read")
    error.__cause__ = MemoryError()
    with pytest.raises(MemoryPlanError), memory_failures():
        raise error


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOENT, "no such file"),
        ImportError("no module"),
        RuntimeError("bad shape"),
        ValueError("out of memory"),
    ],
)
def test_other_errors_stay_as_they_are(error: Exception) -> None:
    assert memory_failure(error) is None
    with pytest.raises(type(error)), memory_failures():
        raise error


def test_an_error_of_the_plan_says_more_and_stays() -> None:
    error = MemoryPlanError("3GiB are needed")
    error.__context__ = MemoryError()
    assert memory_failure(error) is None
