"""What all that follow one response share: how often the store is asked, and that each reads every event once."""

import asyncio
import json
from collections.abc import Sequence

from prolepsis.server.answering.stored_responses import FollowedEvents


class Log:
    """Events in a store."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.status = "in_progress"
        self.num_reads = 0

    def add(self, number: int) -> list[str]:
        some = [json.dumps({"number": len(self.texts) + i}) for i in range(number)]
        self.texts += some
        return some

    def read(self, after: int) -> tuple[str, Sequence[str]]:
        self.num_reads += 1
        return self.status, self.texts[after + 1 :][:5]


async def numbers(followed: FollowedEvents, after: int = -1) -> list[object]:
    """Read until there is no further event."""
    found = list[object]()
    while True:
        _, events = await followed.behind(after + len(found))
        if not events:
            return found
        found += [event["number"] for event in events]


async def test_followers_share_what_is_read() -> None:
    log = Log()
    followed = FollowedEvents(log.read, lambda: True)
    log.add(12)
    assert await asyncio.gather(*(numbers(followed) for _ in range(100))) == [list(range(12))] * 100
    assert log.num_reads == 4, "three pages, and that there is no fourth"
    for _ in range(10):
        first = len(log.texts)
        followed.add(first, log.add(3))
        assert (
            await asyncio.gather(*(numbers(followed, first - 1) for _ in range(100)))
            == [list(range(first, first + 3))] * 100
        )
    assert log.num_reads == 4, "the events of a response that runs here are not read"
    assert await numbers(followed, 1) == list(range(2, 42)), "one that is far behind reads the store"


async def test_followers_of_another_servers_response_share_a_look_at_the_store() -> None:
    log = Log()
    followed = FollowedEvents(log.read, lambda: False)

    async def follow() -> int:
        number, status = 0, "in_progress"
        while status == "in_progress":
            status, events = await followed.behind(number - 1)  # type: ignore[assignment]
            number += len(events)
            if not events:
                await followed.changed()
        return number

    followers = [asyncio.create_task(follow()) for _ in range(50)]
    await asyncio.sleep(0)
    log.add(4)
    await asyncio.sleep(0.3)
    log.status = "completed"
    assert await asyncio.gather(*followers) == [4] * 50
    assert log.num_reads < 10


async def test_what_is_kept_while_the_store_is_read_is_not_missed() -> None:
    log = Log()

    def read(_: int) -> tuple[str, Sequence[str]]:
        followed.add(0, log.add(1))
        return "in_progress", ()

    followed = FollowedEvents(read, lambda: True)
    _, none = await followed.behind(-1)
    assert not none
    followed._read = log.read
    assert (await followed.behind(-1))[1] == [{"number": 0}]
