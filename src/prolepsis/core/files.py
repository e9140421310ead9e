"""Files that Prolepsis keeps: where they are, how they are written, and how a changed file is followed."""

import errno
import fcntl
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from hashlib import file_digest, sha256
from pathlib import Path
from secrets import token_hex
from typing import ClassVar, Generic, TypeVar

import structlog
from pydantic import TypeAdapter, ValidationError

from prolepsis.core.errors import ConfigError, FetchError, ProlepsisError
from prolepsis.core.units import size

log = structlog.get_logger(__name__)


def cache_directory() -> Path:
    """Return the user's cache directory of Prolepsis (`PROLEPSIS_CACHE`, else XDG)."""
    return _directory("PROLEPSIS_CACHE", "XDG_CACHE_HOME", ".cache")


def data_directory() -> Path:
    """Return the user's data directory of Prolepsis (`PROLEPSIS_DATA`, else XDG)."""
    return _directory("PROLEPSIS_DATA", "XDG_DATA_HOME", ".local/share")


def config_directory() -> Path:
    """Return the user's configuration directory of Prolepsis (XDG)."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "prolepsis"


def _directory(own: str, base: str, default: str) -> Path:
    if directory := os.environ.get(own):
        return Path(directory)
    return Path(os.environ.get(base, Path.home() / default)) / "prolepsis"


@contextmanager
def replacing(path: Path, *, mode: int | None = None) -> Iterator[Path]:
    """Yield the path of a file to write, which replaces `path` when the block ends; then it is on disk.

    After an error the old content is still there. `mode`: its permissions, from the start; None: as its writer makes
    it. The folder must exist.
    """
    part = path.with_name(f"{path.name}.{token_hex(4)}.part")  # of its own: others may write the same file
    try:
        if mode is not None:
            os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
        yield part
        if mode is not None:
            part.chmod(mode)  # safetensors writes another file, for the owner only
        _sync(part)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file that only its owner may read (`replacing`)."""
    with replacing(path, mode=0o600) as part:
        part.write_bytes(content)


def write_output(path: Path, content: bytes, what: str = "output") -> None:
    """Write the file that a command is asked for (`write_whole`); raises `ConfigError`, which calls it `what`."""
    try:
        write_whole(path, content)
    except OSError as error:
        raise ConfigError(f"{what} {path} cannot be written: {error.strerror}", param=what) from None


@contextmanager
def exclusive(lock: Path, *, wait: bool = True, mode: int = 0o666) -> Iterator[None]:
    """Hold the file `lock` against other processes. The kernel frees it with its process.

    Waits until it is free, or raises `BlockingIOError`. `mode`: permissions of a new one.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    with open(lock, "w", opener=lambda path, flags: os.open(path, flags, mode)) as file:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def read_cached(file: Path) -> str | None:
    """Return the text of `file`; None if there is none or it cannot be read, which is logged."""
    try:
        return file.read_text()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.warning("kept_file_unreadable", file=str(file), error=str(error))
        return None


def write_cached(file: Path, text: str) -> None:
    """Write `file` atomically. If it cannot be written, the result is computed again at the next start."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as part:
            part.write_text(text)
    except OSError as error:
        log.warning("not_kept", file=str(file), error=str(error))


def sha256_of(path: Path) -> str:
    """Return the file's SHA-256 in hexadecimal."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


NO_SPACE = (errno.ENOSPC, errno.EDQUOT)  # numbers of an `OSError` where a disk, or a quota of it, is full
MOST_BYTES = 2**26
"""Of a file that is read whole, such as a policy: a device or a wrong path must not fill the memory."""


def read_text(file: Path, what: str, *, most_bytes: int = MOST_BYTES) -> str:
    """Return the text of a file; raises `ConfigError`, which calls the file `what`, a setting or a part of one."""
    try:
        return _start_of(file, what, most_bytes).decode()
    except OSError as error:
        raise ConfigError(f"{what} {file} cannot be read: {error.strerror}", param=what.partition(".")[0]) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{what} {file} is not UTF-8: {error.reason}", param=what.partition(".")[0]) from None


def _start_of(file: Path, what: str, most_bytes: int) -> bytes:
    with file.open("rb") as opened:
        start = opened.read(most_bytes + 1)
    if len(start) > most_bytes:
        raise ConfigError(
            f"{what} {file} has more than {most_bytes} bytes; allowed: fewer", param=what.partition(".")[0]
        )
    return start


def numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    """Return the lines of a file of JSON lines that are not empty, with their numbers."""
    lines = enumerate(text.split("\n"), 1)  # splitlines would cut at U+2028 too
    return ((number, line) for number, line in lines if line.strip())


def disk_fault(error: OSError, folder: Path, needed: int | None = None) -> str:
    """Return what an `OSError` at writing means for the user."""
    if error.errno in NO_SPACE:
        wanted = f"; {needed / 1e6:.0f} MB are needed" if needed else ""
        return f"no space left in {folder}{wanted}"
    return str(error)


def require_space(folder: Path, needed: int) -> None:
    """Raise `FetchError` with both amounts unless the disk of `folder` has `needed` bytes free."""
    if (free := shutil.disk_usage(folder).free) < needed:
        raise FetchError(f"{size(needed)} of disk space are needed in {folder}, and {size(free)} are free")


Stamp = tuple[int, ...]
Value = TypeVar("Value")


class JsonFile(Generic[Value]):
    """One value in a JSON file that several processes may read and write; a write is whole or not at all."""

    def __init__(self, path: Path, adapter: TypeAdapter[Value], *, absent: Value, param: str) -> None:
        """`absent`: the value if there is no file. `param`: the setting that names the file, for errors."""
        self.path = path
        self._adapter = adapter
        self._absent = absent
        self._param = param
        self._name = f"{param.replace('_', ' ')} {path}"
        self._stamp = stamp(path)

    def read(self) -> Value:
        """Return the value; raises `ConfigError` for a file that cannot be read or understood."""
        try:
            return self._adapter.validate_json(_start_of(self.path, self._name, MOST_BYTES))
        except FileNotFoundError:
            return self._absent
        except OSError as error:
            raise ConfigError(f"{self._name} cannot be read: {error.strerror}", param=self._param) from None
        except ValidationError as error:
            problem = error.errors()[0]
            where = ".".join(map(str, problem["loc"])) or "the file"
            message = f"{self._name} is damaged: {where}: {problem['msg'].lower()}"
            raise ConfigError(message, param=self._param) from None

    def write(self, value: Value) -> None:
        """Replace the file; it is on disk when this returns. Raises `ConfigError`; the old content then stays."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_whole(self.path, self._adapter.dump_json(value, indent=2) + b"\n")
        except OSError as error:
            raise ConfigError(f"{self._name} cannot be written: {error.strerror}", param=self._param) from None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the file against others that lock it, from reading to writing; where that fails, `write` says why."""
        with ExitStack() as held:
            with suppress(OSError):
                self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                held.enter_context(exclusive(self.path.with_name(f"{self.path.name}.lock"), mode=0o600))
            yield

    def changed(self) -> bool:
        """Return whether the file changed since the last call, or since this object was made."""
        before, self._stamp = self._stamp, stamp(self.path)
        return self._stamp != before


@dataclass(frozen=True, slots=True)
class Reload:
    """The result of polling a file, or another source."""

    changed: bool  # content of another version was taken over
    refused: ProlepsisError | None = None
    """Reason why the present content was not taken over; reported once for each state of it."""


class LastGood(ABC, Generic[Value]):
    """Holds the last good `value` of a file. One assignment replaces it, so readers need no lock."""

    what: ClassVar[str]  # the content of the file, in errors; also the setting that names it

    def __init__(self, path: Path) -> None:
        """Raises `ConfigError` if the file cannot be used."""
        self.path = path
        self.fault = ""
        """Reason why the file's present content is not the value."""
        self._stamp = stamp(path)
        text = read_text(path, self.what)
        self._seen = _digest(text)
        self.value = self._parse(text)

    @abstractmethod
    def _parse(self, text: str) -> Value:
        """Return the value of the text; raises `ConfigError` if it cannot be used."""

    @abstractmethod
    def _version(self, value: Value) -> str:
        """Return a text that differs if the content differs."""

    def poll(self) -> Reload:
        """Take over the file if it changed. Never raises for the file's content."""
        now = stamp(self.path)
        return Reload(changed=False) if now == self._stamp else self.reload(now)

    def reload(self, seen: Stamp | None = None) -> Reload:
        """Read the file now, regardless of its modification time.

        `seen` is the file's stamp before this call; the next `poll` notices a write in between.
        """
        self._stamp = stamp(self.path) if seen is None else seen
        try:
            text = read_text(self.path, self.what)
        except ConfigError as error:
            return self._refuse(str(error), error)
        if _digest(text) == self._seen:
            return Reload(changed=False)
        try:
            value = self._parse(text)
        except ConfigError as error:
            return self._refuse(_digest(text), error)
        self._seen, self.fault = _digest(text), ""
        changed = self._version(value) != self._version(self.value)
        self.value = value
        return Reload(changed)

    def _refuse(self, seen: str, error: ConfigError) -> Reload:
        already, self._seen, self.fault = seen == self._seen, seen, str(error)
        return Reload(changed=False, refused=None if already else error)


def stamp(path: Path) -> Stamp:
    """Return a value that changes with the file; empty if it is not accessible."""
    try:
        stat = path.stat()
    except OSError:
        return ()
    return stat.st_mtime_ns, stat.st_ctime_ns, stat.st_dev, stat.st_ino, stat.st_size


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()
