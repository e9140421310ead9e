"""Keys that an earlier version stored as argon2id hashes."""

import asyncio
from pathlib import Path

import pytest
from argon2 import PasswordHasher

from prolepsis.api.auth.key_file import KeyFile, KeyRecord, hash_of, new_key
from prolepsis.api.auth.keys import Keys
from prolepsis.core.errors import ConfigError
from prolepsis.web.refusals import Refused

CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)


def add_old(file: KeyFile, tenant: str = "acme") -> str:
    record, key = new_key(tenant)
    file.add(record.model_copy(update={"hash": CHEAP.hash(key[-43:])}))
    return key


def guess(key: str, number: int = 0) -> str:
    return f"Bearer {key[:-43]}{number:043d}"


@pytest.fixture
def file(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "keys.json")


async def test_an_old_hash_is_replaced_when_its_key_comes(file: KeyFile) -> None:
    other, key = add_old(file, "other"), add_old(file)
    keys = Keys(file)
    callers = await asyncio.gather(*(keys.caller(f"Bearer {key}") for _ in range(30)))
    assert {caller.tenant for caller in callers} == {"acme"}
    assert keys.old_hashes.num_runs == 1
    waiting, renewed = file.read()
    assert renewed.hash == hash_of(key)
    assert waiting.hash.startswith("$argon2id$")
    restarted = Keys(file)
    assert (await restarted.caller(f"Bearer {key}")).tenant == "acme"
    assert restarted.old_hashes.num_runs == 0
    assert (await restarted.caller(f"Bearer {other}")).tenant == "other"


async def test_guesses_at_an_old_hash_are_refused_and_do_not_replace_it(file: KeyFile) -> None:
    key, keys = add_old(file), Keys(file)
    before = file.read()
    for authorization in (guess(key), f"Bearer {new_key('acme')[1]}"):
        with pytest.raises(Refused) as caught:
            await keys.caller(authorization)
        assert (caught.value.status, caught.value.code) == (401, "invalid_api_key")
    assert file.read() == before


async def test_guesses_do_not_crowd_out_the_right_key(file: KeyFile) -> None:
    key, keys = add_old(file), Keys(file)
    guesses = [asyncio.create_task(keys.caller(guess(key, i))) for i in range(80)]
    right = asyncio.create_task(keys.caller(f"Bearer {key}"))
    assert (await right).tenant == "acme"
    assert {type(error) for error in await asyncio.gather(*guesses, return_exceptions=True)} == {Refused}


async def test_guesses_at_one_key_do_not_delay_another(file: KeyFile) -> None:
    guessed, key = add_old(file), add_old(file, "other")
    keys = Keys(file)
    guesses = [asyncio.create_task(keys.caller(guess(guessed, i))) for i in range(20)]
    await asyncio.sleep(0)
    assert await keys.old_hashes.matches(file.read()[1], key)
    assert keys.old_hashes.num_runs == 2
    await asyncio.gather(*guesses, return_exceptions=True)


class ReadOnly(KeyFile):
    def rehash(self, record: KeyRecord, hashed: str) -> None:
        raise ConfigError("Read-only file system", param="keys_file")


async def test_a_file_that_cannot_be_written_keeps_the_old_hash(tmp_path: Path) -> None:
    file = ReadOnly(tmp_path / "keys.json")
    key = add_old(file)
    keys = Keys(file)
    for _ in range(3):
        assert (await keys.caller(f"Bearer {key}")).tenant == "acme"
    assert keys.old_hashes.num_runs == 1


async def test_a_key_revoked_while_its_old_hash_is_checked_is_refused(file: KeyFile) -> None:
    key, now = add_old(file), 0.0
    keys = Keys(file, lambda: now)
    checked = asyncio.create_task(keys.caller(f"Bearer {key}"))
    await asyncio.sleep(0)
    file.remove(file.read()[0].id)
    now = 1.0
    for authorization in (guess(key), f"Bearer {key}"):  # the first one makes the server look at the file
        with pytest.raises(Refused):
            await keys.caller(authorization)
    with pytest.raises(Refused):
        await checked
    assert file.read() == ()
