from datetime import UTC, datetime
from pathlib import Path

import pytest

from prolepsis.core.errors import ConfigError
from prolepsis.safety.kill_switch import NEVER_SET, KillState, kill_file

STATE = KillState(on=True, by="kim", reason="bad drafts", at=datetime(2026, 11, 21, 9, tzinfo=UTC))


def test_what_is_written_is_read_and_nothing_else_is_left(tmp_path: Path) -> None:
    file = kill_file(tmp_path / "deep" / "kill.json")
    assert file.read() == NEVER_SET
    file.write(STATE)
    assert file.read() == STATE
    assert [path.name for path in file.path.parent.iterdir()] == ["kill.json"]


@pytest.mark.parametrize("text", ["", "{}", '{"on": true}', '{"on": "perhaps", "at": "2026-11-21T09:00:00Z"}', "\x00"])
def test_a_damaged_file_is_an_error_and_never_off(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kill.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="is damaged"):
        kill_file(path).read()


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    file = kill_file(tmp_path / "kill.json")
    file.path.mkdir()
    (file.path / "x").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        file.write(STATE)
    assert [path.name for path in tmp_path.iterdir()] == ["kill.json"]


def test_it_is_kept_with_the_users_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROLEPSIS_DATA", "/srv/prolepsis")
    assert kill_file().path == Path("/srv/prolepsis/kill.json")
