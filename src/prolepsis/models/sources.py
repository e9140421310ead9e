"""Where models come from: a hub, or a package on a Python package index."""

import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from html import unescape
from urllib.parse import quote, urljoin

import httpx

from prolepsis.core.errors import FetchError
from prolepsis.models.fetch import RemoteFile

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
