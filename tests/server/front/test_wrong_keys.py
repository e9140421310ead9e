"""Over real sockets: clients with wrong keys beside clients with right ones."""

import asyncio
from pathlib import Path

import httpx2

from prolepsis.server.front.key_file import KeyFile, new_key
from prolepsis.server.front.keys import Keys
from tests.server.admission.conftest import bearer
from tests.server.conftest import served
from tests.server.fakes import FakeEngine

NUM_WRONG, NUM_RIGHT = 80, 8


def add(file: KeyFile) -> str:
    record, key = new_key("acme")
    file.add(record)
    return key


async def test_wrong_keys_do_not_crowd_out_right_ones(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys.json")
    right = [add(file) for _ in range(NUM_RIGHT)]
    wrong = [f"{right[i % NUM_RIGHT][:-43]}{i:043d}" for i in range(NUM_WRONG)]
    limits = httpx2.Limits(max_connections=NUM_WRONG + NUM_RIGHT)
    with served(FakeEngine(), keys=Keys(file)) as running:
        async with httpx2.AsyncClient(base_url=running.url, limits=limits, timeout=60) as http:

            async def statuses(key: str) -> set[int]:
                return {(await http.get("/v1/models", headers=bearer(key))).status_code for _ in range(3)}

            answered = await asyncio.gather(*map(statuses, [*wrong, *right]))
    assert answered == [{401}] * NUM_WRONG + [{200}] * NUM_RIGHT
