"""Repositories of a hub are listed and fetched at one commit; the hub's faults are named, and soon."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from prolepsis.core.errors import FetchError
from prolepsis.engine.models.files.hub import HubSource, fetch_hub, list_hub
from prolepsis.engine.models.files.store import Endpoints, ModelStore
from tests.engine.models.files.web import COMMIT, Web, serve

NOBODY = "http://127.0.0.1:9"
WEIGHTS = bytes(range(256)) * 4096
FILES = {"config.json": b"{}", "model.safetensors": WEIGHTS, "onnx/model.onnx": b"x", "../evil.json": b"x"}


@pytest.fixture
def web() -> Iterator[Web]:
    with serve(Web()) as running:
        yield running


def ignore(name: str, done: int, total: int | None) -> None:
    pass


def test_endpoints_follow_the_environment() -> None:
    assert Endpoints.from_environment({}).index == "https://pypi.org/simple"
    found = Endpoints.from_environment({"PIP_INDEX_URL": "http://mirror/simple/", "HF_ENDPOINT": "http://hub/"})
    assert found == Endpoints("http://hub", "http://mirror/simple")


def test_a_repository_is_listed_at_one_commit(web: Web) -> None:
    web.serve_hub("a/b", FILES, {"license": "mit"})
    listing = list_hub(web.url, HubSource("a/b"), 5.0)
    assert (listing.commit, listing.licence) == (COMMIT, "mit")
    assert list(listing.checksums) == ["config.json", "model.safetensors"]
    assert listing.checksums["config.json"] is None


def test_of_a_repository_with_several_models_one_file_is_taken(web: Web, tmp_path: Path) -> None:
    web.serve_hub("a/b", {"a-q4.gguf": b"four", "a-q8.gguf": b"eight", "README.md": b""})
    listing = list_hub(web.url, HubSource("a/b", file="a-q4.gguf"), 5.0)
    assert (list(listing.checksums), listing.size, listing.file) == (["a-q4.gguf"], 4, "a-q4.gguf")
    with pytest.raises(FetchError, match=r"a/b has no file a-q2\.gguf"):
        list_hub(web.url, HubSource("a/b", file="a-q2.gguf"), 5.0)


def test_files_come_whole_and_report_their_progress(web: Web, tmp_path: Path) -> None:
    web.serve_hub("a/b", FILES)
    seen: list[tuple[str, int, int | None]] = []
    fetch_hub(web.url, list_hub(web.url, HubSource("a/b"), 5.0), tmp_path, lambda *step: seen.append(step))
    assert (tmp_path / "model.safetensors").read_bytes() == WEIGHTS
    assert ("config.json", 2, 2) in seen
    assert seen[-1] == ("model.safetensors", len(WEIGHTS), len(WEIGHTS))


def test_a_cut_connection_is_tried_again(web: Web, tmp_path: Path) -> None:
    web.serve_hub("a/b", {"model.safetensors": WEIGHTS})
    listing = list_hub(web.url, HubSource("a/b"), 5.0)
    web.cut_after = [len(WEIGHTS), 300_000]  # the answer to HEAD has no body
    fetch_hub(web.url, listing, tmp_path, ignore)
    assert (tmp_path / "model.safetensors").read_bytes() == WEIGHTS
    assert len(web.asked) == 1 + 1 + 2  # listing, head, the cut answer and the whole one


def test_a_wrong_checksum_is_an_error_and_leaves_nothing(web: Web, tmp_path: Path) -> None:
    web.serve_hub("a/b", FILES)
    listing = list_hub(web.url, HubSource("a/b"), 5.0)
    web.pages[f"/a/b/resolve/{COMMIT}/model.safetensors"] = WEIGHTS[::-1]
    with pytest.raises(FetchError, match="SHA-256"):
        fetch_hub(web.url, listing, tmp_path, ignore)
    assert not (tmp_path / "model.safetensors").exists()


def test_faults_are_named(web: Web) -> None:
    with pytest.raises(FetchError, match="404"):
        list_hub(web.url, HubSource("a/b"), 5.0)
    web.pages["/api/models/a/b/revision/main"] = b"nonsense"
    with pytest.raises(FetchError, match="'a/b' at the hub"):
        list_hub(web.url, HubSource("a/b"), 5.0)
    web.serve_hub("a/b", {"config.json": b"{}"})
    with pytest.raises(FetchError, match="no safetensors"):
        list_hub(web.url, HubSource("a/b"), 5.0)


def test_a_hub_that_is_unreachable_or_silent_is_named() -> None:
    with pytest.raises(FetchError, match=r"'a/b' at the hub http://127\.0\.0\.1:9 cannot be reached"):
        list_hub(NOBODY, HubSource("a/b"), 5.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections and never answers
        port = silent.getsockname()[1]
        with pytest.raises(FetchError, match=r"'a/b' at the hub .* cannot be reached"):
            list_hub(f"http://127.0.0.1:{port}", HubSource("a/b"), 0.1)


def test_offline_nothing_is_asked(web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(FetchError, match=r"a/b is not in .*, and HF_HUB_OFFLINE forbids fetching it"):
        ModelStore(tmp_path, Endpoints(web.url, web.url)).pull("a/b")
    assert web.asked == []
