"""A download ends whole, or with an error that says why; what came is not fetched twice."""

import errno
import hashlib
import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import httpx
import pytest

from prolepsis.core.errors import FetchError
from prolepsis.models.files.hub import Downloader, RemoteFile, exclusive
from tests.models.web import Web, serve

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


def no_pause(_: float) -> None:
    pass


def whole(web: Web, **changes: object) -> RemoteFile:
    fields: dict[str, object] = {"name": "model", "url": f"{web.url}/model", "sha256": SHA256, "size": len(BODY)}
    return RemoteFile(**(fields | changes))  # type: ignore[arg-type]


def test_it_brings_the_file_and_reports_progress(web: Web, client: httpx.Client, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    Downloader(client, lambda *step: seen.append(step)).fetch(whole(web), tmp_path / "sub" / "model")
    assert (tmp_path / "sub" / "model").read_bytes() == BODY
    assert seen[-1] == ("model", len(BODY), len(BODY))
    assert [p.name for p in (tmp_path / "sub").iterdir()] == ["model"]


def test_a_cut_connection_is_resumed_where_it_ended(web: Web, client: httpx.Client, tmp_path: Path) -> None:
    web.cut_after = [300_000, 200_000]
    Downloader(client, pause=no_pause).fetch(whole(web), tmp_path / "model")
    assert (tmp_path / "model").read_bytes() == BODY
    ranges = [asked for _, asked in web.asked]
    assert ranges[0] is None
    assert all(r is not None for r in ranges[1:])
    assert len(ranges) == 3


def test_a_later_call_goes_on_with_the_part_of_an_earlier_one(web: Web, client: httpx.Client, tmp_path: Path) -> None:
    (tmp_path / "model.part").write_bytes(BODY[:1000])
    Downloader(client).fetch(whole(web), tmp_path / "model")
    assert (tmp_path / "model").read_bytes() == BODY
    assert web.asked == [("/model", "bytes=1000-")]


def test_a_server_without_ranges_is_read_from_the_start(web: Web, client: httpx.Client, tmp_path: Path) -> None:
    web.ranges = False
    (tmp_path / "model.part").write_bytes(b"x" * 1000)
    Downloader(client).fetch(whole(web), tmp_path / "model")
    assert (tmp_path / "model").read_bytes() == BODY


def test_a_part_longer_than_the_file_is_thrown_away(web: Web, client: httpx.Client, tmp_path: Path) -> None:
    (tmp_path / "model.part").write_bytes(BODY + b"more")
    Downloader(client, pause=no_pause).fetch(whole(web, size=None), tmp_path / "model")
    assert (tmp_path / "model").read_bytes() == BODY


def test_a_wrong_checksum_is_an_error_and_leaves_nothing(web: Web, client: httpx.Client, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="SHA-256"):
        Downloader(client).fetch(whole(web, sha256="0" * 64), tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_size_is_an_error(web: Web, client: httpx.Client, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="announced"):
        Downloader(client).fetch(whole(web, size=1000), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_truncated_file_is_an_error_after_the_attempts(web: Web, client: httpx.Client, tmp_path: Path) -> None:
    web.pages["/model"] = BODY[:-7]
    with pytest.raises(FetchError, match="cannot be fetched"):
        Downloader(client, pause=no_pause).fetch(whole(web), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_refusal_is_not_repeated_and_a_busy_server_is(web: Web, client: httpx.Client, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="404"):
        Downloader(client).fetch(whole(web, url=f"{web.url}/other"), tmp_path / "model")
    assert len(web.asked) == 1
    web.statuses = [503]
    Downloader(client, pause=no_pause).fetch(whole(web), tmp_path / "model")
    assert (tmp_path / "model").read_bytes() == BODY


def test_an_unreachable_host_is_named(client: httpx.Client, tmp_path: Path) -> None:
    pauses: list[float] = []
    file = RemoteFile("model", "http://127.0.0.1:9/model")
    with pytest.raises(FetchError, match=r"http://127\.0\.0\.1:9/model cannot be fetched"):
        Downloader(client, pause=pauses.append).fetch(file, tmp_path / "model")
    assert pauses == [0.5, 1.0, 2.0]


class FullDisk(io.BytesIO):
    def write(self, data: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_says_how_much_is_needed(web: Web, client: httpx.Client, tmp_path: Path) -> None:
    def full(path: Path, mode: str) -> BinaryIO:
        return FullDisk()

    with pytest.raises(FetchError, match=r"no space left in .*; 1 MB are needed"):
        Downloader(client, opener=full).fetch(whole(web), tmp_path / "model")


def test_a_lock_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    inside, order = threading.Event(), []
    with exclusive(tmp_path / "locks" / "a"):
        waiting = threading.Thread(target=lambda: _enter(tmp_path / "locks" / "a", inside))
        waiting.start()
        assert not inside.wait(0.1)
        order.append("first")
    waiting.join(5)
    assert inside.is_set()


def _enter(lock: Path, inside: threading.Event) -> None:
    with exclusive(lock):
        inside.set()
