"""Errors by which a system refuses this process memory, as one error of ours."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from prolepsis.core.errors import MemoryPlanError

_TEXTS = (
    "failed to map segment from shared object",  # the dynamic linker
    "cannot allocate memory",
    "unable to allocate",  # numpy
    "not enough memory",  # torch on the host
    "out of memory",  # torch on a device, and the interpreter while modules are imported
    "unable to mmap",  # torch, files of weights
    "can't start new thread",  # its stack has no room
    "bad_alloc",
)


def memory_failure(error: BaseException) -> MemoryPlanError | None:
    """Return the error to show, if `error` or what caused it says that memory, or room for a thread, was refused."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryPlanError):
            return None  # it says more
        if _is_refusal(cause):
            reason = " ".join(str(cause).split())[-200:] or type(cause).__name__
            return MemoryPlanError(
                f"the system refuses memory or a thread ({reason}); raise the limits of this process (ulimit -v, -d, "
                "-u, or those of its cgroup), lower kv_memory, or choose a smaller model"
            )
        cause = cause.__cause__ or cause.__context__
    return None


@contextmanager
def memory_failures() -> Iterator[None]:
    """Raise `MemoryPlanError` where the block ends because memory was refused."""
    try:
        yield
    except Exception as error:
        if (failure := memory_failure(error)) is not None:
            raise failure from error
        raise


def _is_refusal(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    is_from_a_library = isinstance(error, ImportError | OSError | RuntimeError)
    return is_from_a_library and any(text in str(error).lower() for text in _TEXTS)
