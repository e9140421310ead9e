"""Pages of long prompts on disk, which are there again after a restart.

A folder belongs to one exact forward on one machine, and in it one to each tenant. A file holds the digest of a page's
keys and values, then those. Pages are written while the engine is idle, and read before it serves.
"""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import blake2b, sha256
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from prolepsis.core.files import cache_directory
from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.engine.kv.pages import PagePool

if TYPE_CHECKING:  # tenants are forgotten where there is no engine, too
    from torch import Tensor

LEAST_TOKENS = 512
"""Shorter prompts are read faster than it is worth to keep them."""
_DIGEST_BYTES = 32
_FOLDER = "prefixes"

log = structlog.get_logger(__name__)


def prefix_folder(name: str) -> Path:
    """Return the folder of an exact forward, by a name that no other one has."""
    return cache_directory() / _FOLDER / name


def forget_prefixes(tenant: str) -> int:
    """Delete what is kept of a tenant on this machine, for all models; return the number of pages."""
    files = [*(cache_directory() / _FOLDER).glob(f"*/{_folder_of(tenant)}/*")]
    for file in files:
        file.unlink(missing_ok=True)
    return len(files)


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
        began, files = time.monotonic(), sorted(self._folder.glob("*/*"), key=_used_at)
        self._num_bytes = sum(_size(file) for file in files)
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
                self._write(file, b"".join(_bytes(view) for view in self._views(page)))
        except OSError as error:
            log.warning("prefix_not_kept", folder=str(self._folder), error=str(error))
            self._due.clear()
        return bool(self._due)

    def _write(self, file: Path, content: bytes) -> None:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = file.with_name(f".{file.name}.{os.getpid()}")
        part.write_bytes(blake2b(content, digest_size=_DIGEST_BYTES).digest() + content)  # torn: the digest differs
        part.replace(file)
        self._num_bytes += _DIGEST_BYTES + len(content)
        if self._num_bytes > self._most_bytes:
            self._make_room()

    def _make_room(self) -> None:
        """Delete the oldest pages of whom most is kept, until a tenth is free."""
        tenants = {folder: sorted(folder.iterdir(), key=_used_at) for folder in self._folder.iterdir()}
        sizes = {folder: sum(map(_size, files)) for folder, files in tenants.items()}
        self._num_bytes = sum(sizes.values())
        while self._num_bytes > 0.9 * self._most_bytes:
            largest = max(sizes, key=lambda folder: sizes[folder])
            file = tenants[largest].pop(0)
            size = _size(file)
            file.unlink(missing_ok=True)
            sizes[largest] -= size
            self._num_bytes -= size

    def _read(self, file: Path) -> bool:
        import torch

        try:
            key, stored = bytes.fromhex(file.name), file.read_bytes()
        except (OSError, ValueError):
            return False
        content = bytearray(stored[_DIGEST_BYTES:])
        [page] = self._pool.allocate(1)
        views = self._views(page)
        is_whole = blake2b(content, digest_size=_DIGEST_BYTES).digest() == stored[:_DIGEST_BYTES]
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


def _used_at(file: Path) -> float:
    with suppress(OSError):
        return file.stat().st_mtime
    return 0.0


def _size(file: Path) -> int:
    with suppress(OSError):
        return file.stat().st_size
    return 0


def _bytes(view: "Tensor") -> bytes:
    import torch

    return bytes(view.contiguous().cpu().flatten().view(torch.uint8).numpy())
