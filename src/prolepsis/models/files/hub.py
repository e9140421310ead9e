"""Downloads one file: resumable, checksummed, atomic, with clear errors."""

import errno
import hashlib
import os
import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import BinaryIO, cast
from urllib.parse import quote, urljoin

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


DEFAULT_HUB = "https://huggingface.co"
DEFAULT_INDEX = "https://pypi.org/simple"
SIMPLE_JSON = "application/vnd.pypi.simple.v1+json"
WANTED = re.compile(
    r"(config|generation_config|tokenizer|tokenizer_config|special_tokens_map|model\.safetensors\.index)\.json"
    r"|chat_template\.jinja|tokenizer\.model|merges\.txt|vocab\.json|model[\w.-]*\.safetensors"
)
"""Files of a hub repository that a model is made of; only those at its top."""


@dataclass(frozen=True, slots=True)
class HubSource:
    """A repository on a hub."""

    repository: str
    revision: str = "main"


@dataclass(frozen=True, slots=True)
class PackageSource:
    """One file inside a wheel on the package index."""

    package: str
    version: str
    member: str
    """Path of the file inside the wheel."""


@dataclass(frozen=True, slots=True)
class HubListing:
    """A hub repository at one commit."""

    commit: str
    licence: str | None
    files: tuple[RemoteFile, ...]


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Addresses of hub and package index."""

    hub: str = DEFAULT_HUB
    index: str = DEFAULT_INDEX

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Endpoints":
        """Honour HF_ENDPOINT and pip's PIP_INDEX_URL."""
        hub, index = environment.get("HF_ENDPOINT"), environment.get("PIP_INDEX_URL")
        return cls((hub or DEFAULT_HUB).rstrip("/"), (index or DEFAULT_INDEX).rstrip("/"))


def http_client(environment: Mapping[str, str] = os.environ) -> httpx.Client:
    """Return a client that follows redirects, with pip's certificates (PIP_CERT) where they are set."""
    certificates = environment.get("PIP_CERT")
    verify: ssl.SSLContext | bool = ssl.create_default_context(cafile=certificates) if certificates else True
    return httpx.Client(follow_redirects=True, timeout=httpx.Timeout(60.0, connect=10.0), verify=verify)


def hub_reachable(client: httpx.Client, endpoints: Endpoints, repository: str, timeout: float = 3.0) -> bool:
    """Ask the hub for one small file's header."""
    try:
        url = f"{endpoints.hub}/{repository}/resolve/main/config.json"
        return client.head(url, timeout=timeout).status_code < 400
    except httpx.HTTPError:
        return False


def list_hub(client: httpx.Client, endpoints: Endpoints, source: HubSource) -> HubListing:
    """List the model files of a repository; raises `FetchError` where there is none or the hub is unreachable."""
    url = f"{endpoints.hub}/api/models/{source.repository}/revision/{quote(source.revision, safe='')}"
    answer = _get_json(client, url, {"blobs": "true"}, f"{source.repository!r} at the hub {endpoints.hub}")
    commit = str(answer.get("sha", source.revision))
    card = answer.get("cardData")
    licence = card.get("license") if isinstance(card, dict) else None
    siblings = answer.get("siblings")
    entries = [entry for entry in siblings if isinstance(entry, dict)] if isinstance(siblings, list) else []
    base = f"{endpoints.hub}/{source.repository}/resolve/{commit}"
    files = tuple(_hub_file(entry, base) for entry in entries if WANTED.fullmatch(str(entry.get("rfilename"))))
    if not any(file.name.endswith(".safetensors") for file in files):
        raise FetchError(f"{source.repository} holds no safetensors weights at its top")
    return HubListing(commit, licence if isinstance(licence, str) else None, files)


def _hub_file(entry: Mapping[str, object], base: str) -> RemoteFile:
    name, lfs, size = str(entry["rfilename"]), entry.get("lfs"), entry.get("size")
    sha256 = lfs.get("sha256") if isinstance(lfs, dict) else None
    return RemoteFile(name, f"{base}/{quote(name)}", sha256, size if isinstance(size, int) else None)


def find_wheel(client: httpx.Client, endpoints: Endpoints, source: PackageSource) -> RemoteFile:
    """Find the wheel on the index (simple API, JSON or HTML); raises `FetchError` where it is not there."""
    page = f"{endpoints.index}/{source.package}/"
    prefix = f"{source.package.replace('-', '_')}-{source.version}-"
    try:
        response = client.get(page, headers={"Accept": f"{SIMPLE_JSON}, text/html;q=0.5"})
        response.raise_for_status()
    except httpx.HTTPError as error:
        raise FetchError(f"the package index {page} cannot be read: {error or type(error).__name__}") from error
    is_json = "json" in response.headers.get("Content-Type", "")
    files = _json_links(response, page) if is_json else _html_links(response.text, page)
    for file in files:
        if file.name.startswith(prefix) and file.name.endswith(".whl"):
            return file
    raise FetchError(f"the package index {page} holds no wheel of {source.package} {source.version}")


def _json_links(response: httpx.Response, page: str) -> list[RemoteFile]:
    try:
        entries = response.json()["files"]
        return [
            RemoteFile(e["filename"], urljoin(page, e["url"]), e.get("hashes", {}).get("sha256"), e.get("size"))
            for e in entries
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FetchError(f"the package index {page} answers with something else than its API") from error


def _html_links(page: str, base: str) -> list[RemoteFile]:
    files = []
    for href, name in re.findall(r"""<a\s[^>]*?href=["']([^"']+)["'][^>]*>\s*([^<]+?)\s*</a>""", page):
        url, _, fragment = unescape(href).partition("#")
        sha256 = fragment.removeprefix("sha256=") if fragment.startswith("sha256=") else None
        files.append(RemoteFile(unescape(name), urljoin(base, url), sha256))
    return files


def _get_json(client: httpx.Client, url: str, query: Mapping[str, str], what: str) -> Mapping[str, object]:
    try:
        response = client.get(url, params=dict(query))
        response.raise_for_status()
        answer = response.json()
    except httpx.HTTPStatusError as error:
        raise FetchError(f"{what}: the server answers {error.response.status_code}") from error
    except httpx.HTTPError as error:
        raise FetchError(f"{what} cannot be reached: {error or type(error).__name__}") from error
    except ValueError as error:
        raise FetchError(f"{what}: the answer is not JSON") from error
    if not isinstance(answer, dict):
        raise FetchError(f"{what}: the answer is not a JSON object")
    return answer
