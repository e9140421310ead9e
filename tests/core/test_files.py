"""A lock on a file is held by one at a time; a file is replaced whole or not at all."""

import threading
from pathlib import Path

import pytest

from prolepsis.core.errors import ConfigError
from prolepsis.core.files import exclusive, read_text, replacing, write_whole


def test_a_lock_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    lock, inside = tmp_path / "locks" / "a", threading.Event()

    def enter() -> None:
        with exclusive(lock):
            inside.set()

    waiting = threading.Thread(target=enter, daemon=True)
    with exclusive(lock):
        waiting.start()
        assert not inside.wait(0.1)
    assert inside.wait(60)


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    with replacing(file) as part:
        part.write_text("old")
        assert not file.exists()
    with pytest.raises(UnicodeEncodeError), replacing(file) as part:
        part.write_text("half \udc80", encoding="utf-8")
    with pytest.raises(FileNotFoundError), replacing(file):
        pass  # nothing was written
    assert (file.read_text(), names(tmp_path)) == ("old", ["a.json"])


def test_two_that_replace_a_file_at_once_do_not_mix(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    with replacing(file) as one, replacing(file) as other:
        one.write_text("one")
        other.write_text("other")
    assert (file.read_text(), names(tmp_path)) == ("one", ["a.json"])


def test_a_file_has_its_permissions_from_the_start_also_where_the_writer_makes_another(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    with replacing(file, mode=0o644) as part:
        part.unlink()
        part.touch(0o600)
    assert file.stat().st_mode & 0o777 == 0o644
    with replacing(file, mode=0o600) as part:
        assert part.stat().st_mode & 0o777 == 0o600
        part.write_text("secret")
    assert file.stat().st_mode & 0o777 == 0o600
    write_whole(file, b"own")
    assert (file.stat().st_mode & 0o777, file.read_bytes()) == (0o600, b"own")


def test_a_file_without_an_end_is_not_read_to_it() -> None:
    with pytest.raises(ConfigError, match="has more than 1000 bytes"):
        read_text(Path("/dev/zero"), "policy", most_bytes=1000)
