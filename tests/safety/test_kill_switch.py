from datetime import UTC, datetime
from pathlib import Path

import pytest

from prolepsis.core.errors import ConfigError, InvalidParameter
from prolepsis.core.kill_scope import EVERYTHING
from prolepsis.safety.kill_switch import MAX_SCOPES, NEVER_SET, KilledScope, KillState, kill_file

STATE = KillState(on=True, by="kim", reason="bad drafts", at=datetime(2026, 11, 21, 9, tzinfo=UTC))


def test_the_kill_file_is_read_as_written_and_leaves_no_other_file(tmp_path: Path) -> None:
    file = kill_file(tmp_path / "deep" / "kill.json")
    assert file.read() == NEVER_SET
    file.write(STATE)
    assert file.read() == STATE
    assert [path.name for path in file.path.parent.iterdir()] == ["kill.json"]


def entry(scope: str, by: str = "ann", hour: int = 10) -> KilledScope:
    return KilledScope(scope=scope, by=by, reason="drill", at=datetime(2026, 11, 21, hour, tzinfo=UTC))


def test_scopes_are_turned_one_by_one() -> None:
    state = NEVER_SET.turned(entry("tenant:bank"), on=True).turned(entry("rule:fast", "bob", 11), on=True)
    assert (state.on, state.last_by) == (False, "bob")
    assert state.killed == {"tenant:bank", "rule:fast"}
    state = state.turned(entry(EVERYTHING, "eve", 12), on=True).turned(entry("tenant:bank"), on=False)
    assert state.killed == {EVERYTHING, "rule:fast"}
    assert state.last_by == "eve"
    assert state.turned(entry(EVERYTHING), on=False).killed == {"rule:fast"}
    assert KillState.model_validate_json(state.model_dump_json()) == state


@pytest.mark.parametrize("scope", [EVERYTHING, "tenant:bank"])
def test_a_scope_that_is_stopped_again_keeps_its_first_reason_and_a_release_has_one(scope: str) -> None:
    first = entry(scope)
    again = first.model_copy(update={"by": "bob", "reason": "another drill"})
    state = NEVER_SET.turned(first, on=True).turned(again, on=True)
    assert state.entry(scope) == first
    assert (
        NEVER_SET.turned(first.model_copy(update={"reason": ""}), on=True).turned(again, on=True).entry(scope) == again
    )
    over = again.model_copy(update={"reason": "over"})
    assert (state.turned(over, on=False).released, state.turned(over, on=False).entry(scope)) == (over, None)


def test_a_file_never_gets_more_scopes_than_it_may_hold() -> None:
    state = NEVER_SET
    for number in range(MAX_SCOPES):
        state = state.turned(entry(f"tenant:{number}"), on=True)
    assert KillState.model_validate_json(state.model_dump_json()) == state
    with pytest.raises(InvalidParameter, match=f"{MAX_SCOPES} scopes are stopped already"):
        state.turned(entry("tenant:more"), on=True)
    assert EVERYTHING in state.turned(entry(EVERYTHING), on=True).killed
    assert state.turned(entry("tenant:7", "bob"), on=True).killed == state.killed


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
