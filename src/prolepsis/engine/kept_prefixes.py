"""Pages of long prompts on disk, which are there again after a restart.

A folder belongs to one exact forward on one machine, and in it one to each tenant. A file holds the digest of a page's
keys and values, then those. Pages are written while the engine is idle, and read before it serves.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from prolepsis.core.files import cache_directory
from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.engine.kv.pages import PagePool

if TYPE_CHECKING:  # tenants are forgotten where there is no engine, too
    from torch import Tensor

LEAST_TOKENS = 512  # shorter prompts are read faster than it is worth to keep them
_DIGEST_BYTES = 32
FOLDER = "prefixes"  # in the cache directory: has the folders of all exact forwards

log = structlog.get_logger(__name__)


def forget_prefixes(tenant: str) -> None:
    """Delete what is kept of a tenant on this machine, for all models."""
    for file in (cache_directory() / FOLDER).glob(f"*/{_folder_of(tenant)}/*"):
        file.unlink(missing_ok=True)


class KeptPrefixes:
    """Keeps at most `most_bytes` of the pages of `pool`, whose keys and values are `views` of a page.

    Belongs to the engine's thread. A file that cannot be used is a page that is not kept: nothing here raises.
    """

    def __init__(
        self, folder: Path, most_bytes: int, pool: PagePool, views: Callable[[int], Sequence["Tensor"]]
    ) -> None:
        self._folder, self._most_bytes, self._pool, self._views = folder, most_bytes, pool, views
        self._due: dict[bytes, Path] = {}
        """By hash: the file of each page that was in use. Those behind come first, so that no page is older on disk
        than those that need it."""
        self._num_bytes = 0

    def restore(self) -> None:
        """Put the pages that were in use last into the pool, at most half of it."""
        began, files = time.monotonic(), sorted(self._folder.glob("*/*"), key=_use_and_size)
        self._num_bytes = sum(_use_and_size(file)[1] for file in files)
        num_restored = sum(map(self._read, files[-(self._pool.num_pages // 2) :]))
        if num_restored:
            seconds = round(time.monotonic() - began, 2)
            log.info("prefixes_restored", tokens=num_restored * PAGE_SIZE, seconds=seconds)

    def used(self, tenant: str, hashes: Sequence[bytes]) -> None:
        """Take note of the pages of a tenant's prompt."""
        folder = self._folder / _folder_of(tenant)
        for key in hashes:
            self._due.pop(key, None)
            self._due[key] = folder / key.hex()

    def keep_next(self) -> bool:
        """Write one of the pages that are due, or note that it was in use; return whether others may be left."""
        if not self._due:
            return False
        key, file = self._due.popitem()
        page = self._pool.find(key)
        try:
            if file.exists():
                os.utime(file)
            elif page is not None:
                import torch

                views = [view.contiguous().cpu().flatten().view(torch.uint8).numpy() for view in self._views(page)]
                content = b"".join(view.tobytes() for view in views)
                file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                part = file.with_name(f".{file.name}.{os.getpid()}")
                part.write_bytes(sha256(content).digest() + content)  # torn: the digest differs
                part.replace(file)
                self._num_bytes += _DIGEST_BYTES + len(content)
                if self._num_bytes > self._most_bytes:
                    self._make_room()
        except OSError as error:
            log.warning("prefix_not_kept", folder=str(self._folder), error=str(error))
            self._due.clear()
        return bool(self._due)

    def _make_room(self) -> None:
        """Delete the oldest pages of whom most is kept, until a tenth is free."""
        tenants = [
            deque(sorted((*_use_and_size(file), file) for file in folder.iterdir()))
            for folder in self._folder.iterdir()
        ]
        sizes = [sum(size for _, size, _ in files) for files in tenants]
        while sum(sizes) > 0.9 * self._most_bytes:
            largest = sizes.index(max(sizes))
            _, size, file = tenants[largest].popleft()
            file.unlink(missing_ok=True)
            sizes[largest] -= size
        self._num_bytes = sum(sizes)

    def _read(self, file: Path) -> bool:
        import torch

        try:
            key, stored = bytes.fromhex(file.name), file.read_bytes()
        except (OSError, ValueError):
            return False
        content = bytearray(stored[_DIGEST_BYTES:])
        [page] = self._pool.allocate(1)
        views = self._views(page)
        is_whole = sha256(content).digest() == stored[:_DIGEST_BYTES]
        usable = is_whole and len(content) == sum(view.nbytes for view in views)
        if usable:
            values, end = torch.frombuffer(content, dtype=torch.uint8), 0
            for view in views:
                start, end = end, end + view.nbytes
                view.copy_(values[start:end].view(view.dtype).view(view.shape))
            self._pool.publish(page, key)
        else:
            log.warning("prefix_unreadable", file=str(file))
            with suppress(OSError):
                file.unlink()
        self._pool.release([page])
        return usable


def _folder_of(tenant: str) -> str:
    return sha256(tenant.encode("utf-8", "surrogatepass")).hexdigest()[:24]


def _use_and_size(file: Path) -> tuple[float, int]:
    """Return when a file was in use last, and its bytes; zeros for one that is gone."""
    with suppress(OSError):
        stat = file.stat()
        return stat.st_mtime, stat.st_size
    return 0.0, 0
