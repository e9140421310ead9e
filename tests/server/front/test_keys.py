"""Keys: at rest, presented, changed while the server runs."""

import json
import os
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from prolepsis.control.web.caller import DEVELOPER
from prolepsis.control.web.refusals import Refused
from prolepsis.core.errors import ConfigError
from prolepsis.server.front.key_file import KEY, KeyFile, KeyRecord, hash_of, new_key
from prolepsis.server.front.keys import Keys
from tests.clock import Clock


def add(file: KeyFile, tenant: str = "acme", expires: datetime | None = None) -> str:
    record, key = new_key(tenant, expires=expires)
    file.add(record)
    return key


def refused(keys: Keys, authorization: str | None) -> Refused:
    with pytest.raises(Refused) as caught:
        keys.caller(authorization)
    return caught.value


@pytest.fixture
def file(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "sub" / "keys.json")


def test_a_key_is_known_by_its_hash_only(file: KeyFile) -> None:
    key = add(file)
    stored = file.path.read_text()
    match = KEY.fullmatch(key)
    assert match is not None
    assert match[1] in stored
    assert match[2] not in stored
    assert hash_of(key) in stored
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    caller = Keys(file).caller(f"Bearer {key}")
    assert (caller.tenant, caller.tier, caller.roles) == ("acme", "standard", frozenset({"client"}))
    assert caller.key_id == match[1]


def test_people_call_a_key_by_its_note_or_its_tenant(file: KeyFile) -> None:
    records = [new_key("acme", note="release pipeline")[0], new_key("acme")[0]]
    for record in records:
        file.add(record)
    names = [Keys(file).name_of(key_id) for key_id in (*(record.id for record in records), "server", "")]
    assert names == ["release pipeline", "acme", "", ""]


def test_wrong_keys_are_refused_alike(file: KeyFile) -> None:
    key = add(file)
    keys = Keys(file)
    other, own = new_key("acme")[1], key[:-43]
    for given in (
        f"Bearer {other}",
        f"Bearer {own}{'x' * 43}",
        f"Basic {key}",
        key,
        "Bearer ",
        f"Bearer {key}x",
        "Bearer ü",
    ):
        error = refused(keys, given)
        assert (error.status, error.code) == (401, "invalid_api_key")
        assert error.headers["www-authenticate"] == 'Bearer realm="prolepsis"'
        assert key not in str(error)
    missing = refused(keys, None)
    assert (missing.status, missing.code) == (401, "missing_api_key")


def test_an_expired_key_says_so(file: KeyFile) -> None:
    end = datetime.now(UTC) + timedelta(hours=1)
    key = add(file, expires=end)
    Keys(file, today=lambda: end - timedelta(seconds=1)).caller(f"Bearer {key}")
    error = refused(Keys(file, today=lambda: end), f"Bearer {key}")
    assert (error.status, error.code) == (401, "expired_api_key")


def test_a_running_server_sees_new_and_revoked_keys(file: KeyFile) -> None:
    first, clock = add(file), Clock()
    keys = Keys(file, clock)
    keys.caller(f"Bearer {first}")
    second = add(file)
    assert refused(keys, f"Bearer {second}").status == 401  # not looked at within the same second
    clock.now += 1
    keys.caller(f"Bearer {second}")
    file.remove(keys.caller(f"Bearer {first}").key_id)
    clock.now += 1
    assert refused(keys, f"Bearer {first}").status == 401
    keys.caller(f"Bearer {second}")


def test_the_first_key_ends_development_mode_for_good(file: KeyFile) -> None:
    clock = Clock()
    keys = Keys(file, clock)
    assert not keys.required
    assert keys.caller(None) == DEVELOPER
    key = add(file)
    clock.now += 1
    assert refused(keys, None).status == 401
    assert keys.required
    file.remove(keys.caller(f"Bearer {key}").key_id)
    clock.now += 1
    assert refused(keys, None).status == 401
    file.path.unlink()
    clock.now += 1
    assert refused(keys, None).status == 401


def test_a_revoked_last_key_does_not_open_the_server_at_a_restart(file: KeyFile) -> None:
    key = add(file)
    file.remove(Keys(file).caller(f"Bearer {key}").key_id)
    keys = Keys(file)
    assert keys.required
    assert refused(keys, None).status == 401


class Unreliable(KeyFile):
    """A key file that cannot be read while its disk is broken."""

    broken = False

    def read(self) -> tuple[KeyRecord, ...]:
        if self.broken:
            raise ConfigError("Input/output error", param="keys_file")
        return super().read()


def test_a_read_that_failed_is_tried_again(tmp_path: Path) -> None:
    file = Unreliable(tmp_path / "keys.json")
    key, clock = add(file), Clock()
    keys = Keys(file, clock)
    late = add(file, "late")
    file.broken = True
    with capture_logs() as logs:
        for _ in range(3):
            clock.now += 1
            keys.caller(f"Bearer {key}")
    assert [line["event"] for line in logs] == ["keys_not_reloaded"]
    file.broken = False
    clock.now += 1
    assert keys.caller(f"Bearer {late}").tenant == "late"


def test_a_file_put_back_with_its_old_time_is_another_version(file: KeyFile) -> None:
    add(file)
    before, stat = file.version(), file.path.stat()
    text = file.path.read_text()
    file.path.write_text(text.replace("acme", "emca"))
    os.utime(file.path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert file.version() != before


def test_a_file_broken_while_serving_leaves_the_keys_as_they_were(file: KeyFile) -> None:
    key, clock = add(file), Clock()
    keys = Keys(file, clock)
    file.path.write_text("{")
    clock.now += 1
    assert keys.caller(f"Bearer {key}").tenant == "acme"


@pytest.mark.parametrize("content", ["{", "[]", '{"keys": [{"id": "x"}]}', '{"keys": [], "more": 1}'])
def test_a_file_that_is_broken_at_start_is_an_error(file: KeyFile, content: str) -> None:
    file.path.parent.mkdir()
    file.path.write_text(content)
    file.path.chmod(0o600)
    with pytest.raises(ConfigError, match=r"keys\.json is damaged") as caught:
        Keys(file)
    assert caught.value.param == "keys_file"


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o602, 0o660])
def test_a_file_that_others_may_open_is_refused(file: KeyFile, mode: int) -> None:
    add(file)
    file.path.chmod(mode)
    with pytest.raises(ConfigError, match=f"mode {mode:o}, .*allowed: 6") as caught:
        Keys(file)
    assert caught.value.param == "keys_file"
    file.path.chmod(0o600)
    assert len(file.read()) == 1


def test_a_file_opened_to_others_while_serving_leaves_the_keys_as_they_were(file: KeyFile) -> None:
    key, clock = add(file), Clock()
    keys = Keys(file, clock)
    file.path.chmod(0o644)
    clock.now += 1
    assert keys.caller(f"Bearer {key}").tenant == "acme"


def test_a_write_that_fails_leaves_the_file_whole(file: KeyFile, monkeypatch: pytest.MonkeyPatch) -> None:
    add(file)
    before = file.path.read_text()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ConfigError, match="No space left"):
        add(file)
    assert file.path.read_text() == before
    assert sorted(path.name for path in file.path.parent.iterdir()) == ["keys.json", "keys.json.lock"]


def test_writers_do_not_lose_each_others_keys(file: KeyFile) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: add(file, f"t{i}"), range(8)))
    assert {record.tenant for record in file.read()} == {f"t{i}" for i in range(8)}


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"tenant": ""}, "tenant"),
        ({"tenant": "a b"}, "tenant"),
        ({"tier": "gold"}, "tier"),
        ({"roles": ["root"]}, "roles"),
        ({"roles": []}, "roles"),
    ],
)
def test_values_that_are_not_allowed_are_named(values: dict[str, object], name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        new_key(**{"tenant": "acme", **values})  # type: ignore[arg-type]
    assert caught.value.param == name


def test_a_removed_key_must_be_there(file: KeyFile) -> None:
    add(file)
    with pytest.raises(ConfigError, match="keys list"):
        file.remove("0" * 12)
    assert len(json.loads(file.path.read_text())["keys"]) == 1


def test_a_hash_of_another_form_is_refused_and_not_never_matched(file: KeyFile) -> None:
    add(file)
    file.path.write_text(file.path.read_text().replace("sha256$", "$argon2id$"))
    with pytest.raises(ConfigError, match="hash"):
        Keys(file)
