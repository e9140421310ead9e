"""argon2id hashes of keys that earlier versions made: each is checked until its key has come once."""

import asyncio
from collections.abc import Sequence

from anyio import to_thread
from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError

from prolepsis.api.auth.key_file import KeyRecord, hash_of


def is_old(record: KeyRecord) -> bool:
    """Return whether a record has such a hash."""
    return record.hash.startswith("$argon2")


class OldHashes:
    """The keys that have matched such a hash. Belongs to one event loop.

    argon2 runs once at a time, and the keys with such hashes take turns: guesses at one delay no other.
    """

    def __init__(self) -> None:
        self.num_runs = 0
        """Runs of argon2."""
        self._matched: dict[str, str] = {}
        """`hash_of` a key by the argon2id hash that it matched."""
        self._turns: dict[str, asyncio.Lock] = {}
        self._one_run = asyncio.Lock()

    def renewed(self, records: Sequence[KeyRecord]) -> list[KeyRecord]:
        """Return the records, those whose keys have matched with `hash_of` the key."""
        return [record.model_copy(update={"hash": self._matched.get(record.hash, record.hash)}) for record in records]

    async def matches(self, record: KeyRecord, key: str) -> bool:
        """Return whether the key is that of a record with an old hash; each key waits for its turn, none is refused."""
        async with self._turns.setdefault(record.hash, asyncio.Lock()):
            if record.hash in self._matched:
                return self._matched[record.hash] == hash_of(key)
            async with self._one_run:
                self.num_runs += 1
                if not await to_thread.run_sync(_matches, record.hash, key.rpartition(f"{record.id}_")[2]):
                    return False
            self._matched[record.hash] = hash_of(key)
            return True


def _matches(hashed: str, secret: str) -> bool:
    try:
        return PasswordHasher().verify(hashed, secret)
    except (Argon2Error, InvalidHashError):
        return False
