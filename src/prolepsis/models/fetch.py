"""Downloads one file: resumable, checksummed, atomic, with clear errors."""

import errno
import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import httpx

from prolepsis.core.errors import FetchError

ATTEMPTS = 4
RETRIED_STATUS = (429, 500, 502, 503, 504)

Progress = Callable[[str, int, int | None], None]
"""Called with file name, bytes so far and bytes in all (None: unknown)."""
Opener = Callable[[Path, str], BinaryIO]


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file to fetch; what is None is not checked."""

    name: str
    url: str
    sha256: str | None = None
    size: int | None = None


def silent(name: str, done: int, total: int | None) -> None:
    """A progress callback that shows nothing."""


def open_binary(path: Path, mode: str) -> BinaryIO:
    """Open a file for writing bytes; replaced in tests by files that fail."""
    return cast(BinaryIO, path.open(mode))


@dataclass(frozen=True, slots=True)
class Downloader:
    """Fetches files over one HTTP client."""

    client: httpx.Client
    progress: Progress = silent
    opener: Opener = open_binary
    pause: Callable[[float], None] = time.sleep

    def fetch(self, file: RemoteFile, target: Path) -> Path:
        """Bring `file` to `target`, which appears whole or not at all.

        An interrupted download goes on where it stopped, now or at the next call. Raises `FetchError` for an
        unreachable host, a refused request, a wrong size or checksum, and a full disk.
        """
        part = target.with_name(target.name + ".part")
        target.parent.mkdir(parents=True, exist_ok=True)
        for attempt in range(ATTEMPTS):
            try:
                self._continue(file, part)
                break
            except (httpx.TransportError, _RetryError) as error:
                if attempt == ATTEMPTS - 1:
                    raise FetchError(f"{file.url} cannot be fetched: {_say(error)}") from error
                self.pause(0.5 * 2**attempt)
        self._verify(file, part)
        part.replace(target)
        return target

    def _continue(self, file: RemoteFile, part: Path) -> None:
        have = part.stat().st_size if part.exists() else 0
        if file.size is not None and have == file.size:
            return
        if file.size is not None and have > file.size:
            have = 0
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
        with self.client.stream("GET", file.url, headers=headers) as response:
            if response.status_code == 416 and have:
                part.unlink()
                raise _RetryError("the part fetched before does not fit the file")
            if response.status_code in RETRIED_STATUS:
                raise _RetryError(f"the server answers {response.status_code}")
            if response.status_code not in (200, 206):
                raise FetchError(f"{file.url}: the server answers {response.status_code} {response.reason_phrase}")
            self._write(file, part, response, have if response.status_code == 206 else 0)

    def _write(self, file: RemoteFile, part: Path, response: httpx.Response, done: int) -> None:
        length = response.headers.get("Content-Length")
        total = file.size if file.size is not None else (done + int(length) if length else None)
        try:
            with self.opener(part, "ab" if done else "wb") as out:
                for chunk in response.iter_raw():
                    out.write(chunk)
                    done += len(chunk)
                    self.progress(file.name, done, total)
        except OSError as error:
            raise FetchError(f"{part} cannot be written: {disk_fault(error, part.parent, total)}") from error
        if total is not None and done < total:
            raise _RetryError(f"the connection ended after {done} of {total} bytes")

    def _verify(self, file: RemoteFile, part: Path) -> None:
        size = part.stat().st_size
        if file.size is not None and size != file.size:
            part.unlink()
            raise FetchError(f"{file.url}: {size} bytes came, {file.size} were announced")
        if file.sha256 is None:
            return
        found = sha256_of(part)
        if found != file.sha256:
            part.unlink()
            raise FetchError(f"{file.url}: its SHA-256 is {found}, not {file.sha256} as announced; it was discarded")


class _RetryError(Exception):
    """Worth another attempt."""


def _say(error: Exception) -> str:
    return str(error) or type(error).__name__


def disk_fault(error: OSError, folder: Path, needed: int | None = None) -> str:
    """Say what an OSError at writing means for the user."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        wanted = f"; {needed / 1e6:.0f} MB are needed" if needed else ""
        return f"no space left in {folder}{wanted}"
    return str(error)


def sha256_of(path: Path) -> str:
    """Return the file's SHA-256 in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def exclusive(lock: Path) -> Iterator[None]:
    """Hold `lock` against other processes; waits until it is free."""
    import fcntl

    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        with lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise FetchError(f"{lock} cannot be used: {disk_fault(error, lock.parent)}") from error
